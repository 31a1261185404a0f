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


class Told:
    """A process that says what it does, line by line, and goes on when it is told; `with` ends it.

    Args:
        code: of the program.
        arguments: of the program.
        start: makes the process.
    """

    def __init__(self, code, *arguments, start=Forked):
        command = python_command(textwrap.dedent(code), *map(str, arguments))
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def says(self):
        """The words of its next line, waited for."""
        return self.process.stdout.readline().split()

    def go_on(self):
        """Tell it to go on."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
