"""Values that cannot be used, and `ejcache config set shared=`: nothing remains of a command that fails."""

from __future__ import annotations

import os
import stat

import pytest
from cli_helpers import PYTHON, ejcache
from helpers import run_program
from users import command_of

MEMBER = 4242
"""A user, and a group of the same number."""


def found(root):
    """The permissions of the root, and what is in it with its permissions."""
    return stat.S_IMODE(root.stat().st_mode), {
        path.name: (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) for path in root.iterdir()
    }


@pytest.fixture
def of_the_team(open_place):
    """What clusters have: a directory that root made for a group."""
    root = open_place / "cache"
    root.mkdir()
    command_of(MEMBER)  # skips where no other user can be had
    os.chown(root, 0, MEMBER)
    root.chmod(0o2775)
    return root


def share(root, how):
    command = [*command_of(MEMBER), PYTHON, "-m", "ejcache", "config", "set", f"shared={how}", "--dir", str(root)]
    return run_program(command, env={"HOME": "/nonexistent"}, check=False)


def test_a_member_of_the_group(of_the_team):
    """The root stays as root has made it; what the member makes below is the group's."""
    done = share(of_the_team, "group")
    assert (done.returncode, done.stdout) == (0, f"{of_the_team} is shared with its group\n"), done
    assert found(of_the_team) == (0o2775, {"v1": (0o2770, MEMBER)})


def test_more_than_the_root_allows(of_the_team):
    """Only root can open the directory to everybody; the command says so and leaves nothing there."""
    done = share(of_the_team, "everybody")
    assert done.returncode == 1
    assert "only its owner" in done.stderr
    assert found(of_the_team) == (0o2775, {})


def test_a_value_that_is_wrong(tmp_path):
    """Nothing is shared, or written into a file, by a command whose other value cannot be used."""
    (tmp_path / "cache").mkdir(mode=0o700)
    said = ejcache("config", "set", "shared=group", "enabled=perhaps", "--dir", str(tmp_path / "cache"))
    assert said.status == 2
    assert found(tmp_path / "cache") == (0o700, {})


@pytest.mark.parametrize(
    "command",
    ["config get dir", "doctor", "key", "ls", "pull DIR/other", "push DIR/other", "stats", "target ls", "verify"],
)
def test_a_variable_that_is_wrong(monkeypatch, tmp_path, command):
    """A command that works on a cache refuses it, as it refuses an option, and makes nothing."""
    monkeypatch.setenv("EJCACHE_MAX_SIZE", "banana")
    said = ejcache(*command.replace("DIR", str(tmp_path)).split(), "--dir", tmp_path / "cache")
    assert (said.status, said.out) == (2, "")
    assert "EJCACHE_MAX_SIZE cannot be 'banana'" in said.err
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "other").exists()


def test_config_with_a_value_that_is_wrong(monkeypatch, tmp_path):
    """The settings are shown with what is used instead, and the status says it; a file's value can be replaced."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ejcache").mkdir()
    (tmp_path / "ejcache" / "config.toml").write_text('max_size = "banana"\n')
    said = ejcache("config")
    assert said.status == 2
    assert "max_size" in said.out
    assert ejcache("config", "set", "max_size=1GB").status == 0
    assert ejcache("config").status == 0
    monkeypatch.setenv("EJCACHE_MAX_SIZES", "1GB")
    assert ejcache("config").status == 1
