"""The reference of the command line, and that every command is in it and has help."""

from __future__ import annotations

import sys

import pytest
import typer
from helpers import ROOT, run_program

from ejcache.cli.main import app


def commands(group, above=()):
    """Every command below a group, by its whole name; groups themselves are not commands."""
    found = {}
    for name, command in group.commands.items():
        path = (*above, name)
        found |= commands(command, path) if hasattr(command, "commands") else {" ".join(path): command}
    return found


COMMANDS = commands(typer.main.get_command(app))


def test_reference_is_up_to_date():
    """docs/cli.md is what the tool makes of the help now."""
    done = run_program([sys.executable, ROOT / "tools" / "cli_reference.py", "--check"], check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name):
    """Each command says what it does, each option too, and each takes --dir and --json."""
    command = COMMANDS[name]
    assert command.help
    assert command.short_help
    assert [p.name for p in command.params if not getattr(p, "help", None)] == []
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--dir", "--json"} <= options
    assert f"## ejcache {name}\n" in (ROOT / "docs" / "cli.md").read_text()
