"""Every command has help, and says errors as JSON, too."""

from __future__ import annotations

import pytest
from cli_helpers import ejcache, every_command

COMMANDS = every_command()


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (["ls", "--dir", "/nonexistent/cache"], 1, "NotAStoreError"),
        (["prune", "--max-size", "much"], 2, "SettingError"),
        (["ls", "--bogus"], 2, "UsageError"),
        (["tuned", "show"], 2, "UsageError"),
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
    assert name == "bench" or {"--dir", "--json"} <= options
