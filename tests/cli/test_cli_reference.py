"""The reference of the command line, and that every command is in it and has help."""

from __future__ import annotations

import sys

import pytest
import typer
from cli_helpers import ejcache
from helpers import ROOT, run_program

from ejcache.cli.main import build


def commands(group, above=()):
    """Every command below a group, by its whole name; groups themselves are not commands."""
    found = {}
    for name, command in group.commands.items():
        path = (*above, name)
        found |= commands(command, path) if hasattr(command, "commands") else {" ".join(path): command}
    return found


COMMANDS = commands(typer.main.get_command(build()))


def test_reference_is_up_to_date():
    """docs/cli.md is what the tool makes of the help now."""
    done = run_program([sys.executable, ROOT / "tools" / "cli_reference.py", "--check"], check=False)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")


def test_page_of_json_is_up_to_date():
    """docs/json.md names the fields, and their types, that commands print."""
    done = run_program([sys.executable, ROOT / "tools" / "json_reference.py", "--check"], check=False)
    assert done.returncode == 0, done.stderr  # where libtpu is installed, it writes to stderr, too


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (["ls", "--dir", "/nonexistent/cache"], 1, "NotAStoreError"),
        (["prune", "--max-size", "much"], 2, "SettingError"),
        (["ls", "--bogus"], 2, "UsageError"),
        (["show"], 2, "UsageError"),
    ],
)
def test_errors_as_json(arguments, status, kind):
    """With --json, an error is one object on stdout too; the sentence and the exit status stay the same."""
    said, plain = ejcache(*arguments, "--json"), ejcache(*arguments)
    assert (said.status, said.json["kind"], said.err) == (status, kind, f"ejcache: {said.json['error']}\n")
    assert (plain.status, plain.out, plain.err) == (status, "", said.err)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name):
    """Each command says what it does, each option too, and each takes --dir and --json."""
    command = COMMANDS[name]
    assert command.help
    assert command.short_help
    assert f"  ejcache {name}" in command.epilog
    assert [p.name for p in command.params if not getattr(p, "help", None)] == []
    options = {option for parameter in command.params for option in parameter.opts}
    assert name in {"bench", "completion"} or {"--dir", "--json"} <= options
    assert f"## ejcache {name}\n" in (ROOT / "docs" / "cli.md").read_text()
