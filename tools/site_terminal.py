"""Prints what the site shows of commands on a terminal, as JSON: the page, and the HTML report of the same starts.

    python tools/site_terminal.py

The starts are those of README: its program runs twice, and once more after an edit. Then each command runs on a
pseudo-terminal with colours, at two widths.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTHS: Final = (80, 200)
LINES: Final = 50
COMMANDS: Final = ("why step", "advise", "report", "ls", "stats", "prune --dry-run --max-entries 5", "doctor")
PAGE: Final = "terminal.md"
REPORT: Final = "report.html"
HEAD: Final = """\
# On a terminal

This page shows what commands print on a terminal of 80 columns and on one of 200 columns. This program ran twice, and
once more after `RATE` was changed to 0.002:

```python
{program}```

Colours are printed only on a terminal. `NO_COLOR` turns them off. If stdout is a file or a pipe, commands print a tab
between the cells of a table, and no line is wrapped.

[The HTML report of these starts]({report}) is what `ejcache report --html {report}` writes.
"""
_LEFT_OUT: Final = ("EJCACHE", "XDG_", "JAX_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
_STYLES: Final = {"0": "</b>", "1": "<b>", "31": '<b class="red">', "32": '<b class="green">'}


def program() -> str:
    """The program of README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"`train\.py`:\n\n```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def on_terminal(command: list[str], columns: int, *, env: dict[str, str], cwd: Path) -> str:
    """What a command writes to a terminal that is so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    written = bytearray()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=env, cwd=cwd) as process:
        os.close(theirs)
        with suppress(OSError):  # Linux ends a terminal so
            while read := os.read(ours, 65536):
                written += read
        os.close(ours)
        complained = process.stderr.read() if process.stderr is not None else b""
    if process.returncode not in (0, 1):  # advise has found something
        sys.exit(f"{command} ended with {process.returncode}: {complained.decode()[-2000:]}")
    return written.decode().replace("\r\n", "\n")


def shown(printed: str, columns: int) -> str:
    """What stands on the terminal, in HTML whose colours are those of the page.

    Raises ValueError for any other control sequence than the styles of `ejcache.cli.output`, and for a line that is
    wider than the terminal.
    """
    parts = []
    for place, piece in enumerate(re.split(r"\x1b\[(\d+)m", printed.rstrip("\n"))):
        parts.append(_STYLES[piece] if place % 2 else escape(piece, quote=False))
    plain = re.sub(r"\x1b\[\d+m", "", printed)
    for line in plain.splitlines():
        if not line.isprintable() or len(line) > columns:
            raise ValueError(f"{line!r} on {columns} columns")
    return f'<pre class="terminal"><code>{"".join(parts)}</code></pre>'


def _environment(home: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    return env | {"HOME": str(home), "TERM": "xterm", "JAX_PLATFORMS": "cpu"}


def start(ejcache: list[str], home: Path) -> None:
    """Run the program of README twice, and once more after the edit."""
    text = program()
    for source in (text, text, text.replace("RATE = 0.001", "RATE = 0.002")):
        (home / "train.py").write_text(source, encoding="utf-8")
        command = [*ejcache, "run", "--quiet", "train.py"]
        subprocess.run(command, env=_environment(home), cwd=home, check=True, capture_output=True)


def pages(ejcache: list[str], home: Path) -> dict[str, str]:
    """The page and the report by their names, made with this command in a home directory where the starts were."""
    env = _environment(home)
    parts = [HEAD.format(program=program(), report=REPORT)]
    for command in COMMANDS:
        parts.append(f"## ejcache {command}\n")
        for columns in WIDTHS:
            printed = on_terminal([*ejcache, *command.split()], columns, env=env, cwd=home)
            parts += [f"{columns} columns:\n", shown(printed, columns) + "\n"]
    subprocess.run([*ejcache, "report", "--html", REPORT], env=env, cwd=home, check=True, capture_output=True)
    return {PAGE: "\n".join(parts), REPORT: (home / REPORT).read_text(encoding="utf-8")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        start([sys.executable, "-m", "ejcache"], Path(made))
        json.dump(pages([sys.executable, "-m", "ejcache"], Path(made)), sys.stdout)
