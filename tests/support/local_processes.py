"""Interpreters that run beside a test and are driven through their pipes."""

from __future__ import annotations

import contextlib
import subprocess
import textwrap

from forking import Forked
from helpers import python_command


@contextlib.contextmanager
def starting():
    """A function that starts `python -c code arguments…`; whatever still runs at the end is killed."""
    processes = []

    def start(code, *arguments):
        process = Forked(
            python_command(textwrap.dedent(code), *map(str, arguments)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.communicate()
