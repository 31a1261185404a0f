"""Configuration files: below the environment, the user's before the host's, and safe to read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ejcache.cli.main import main
from ejcache.errors import ConfigFileError
from ejcache.settings import directories
from ejcache.settings.config_files import change_file
from ejcache.settings.directories import user_file
from ejcache.settings.resolve import resolve, set_command_line
from ejcache.settings.table import Origin

if TYPE_CHECKING:
    from pathlib import Path

    from ejcache.settings.table import Settings


@pytest.fixture
def user(clean_environment: Path) -> Path:
    """The user's file, in a directory that exists."""
    path = clean_environment / ".config" / "ejcache" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def settings() -> Settings:
    """As they are now."""
    return resolve()


def test_a_setting_comes_from_the_users_file(user: Path) -> None:
    """A value in the user's file counts where nothing else sets it, and its origin is the file."""
    user.write_text('max_size = "50GB"\nread_only = true\nlocal_max_size = 0\nmin_compile_seconds = 3\n')
    now = settings()
    assert (now.max_size, now.read_only, now.local_max_size, now.min_compile_seconds) == (50 * 10**9, True, 0, 3.0)
    assert now["max_size"].origin is Origin.FILE
    assert now["max_size"].source == str(user)
    assert now.problems == ()


def test_names_may_be_those_of_jax(user: Path) -> None:
    """A file may name a setting as JAX names its flag."""
    user.write_text("jax_persistent_cache_min_compile_time_secs = 2.5\n")
    assert settings().min_compile_seconds == 2.5


def test_environment_and_command_line_overrule_files(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment counts before a file, and the command line before both."""
    user.write_text('max_size = 1\ndir = "/in-file"\nread_only = true\n')
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "2")
    monkeypatch.setenv("EJCACHE_READ_ONLY", "0")
    assert (settings().max_size, settings().read_only, settings().dir) == (2, False, "/in-file")
    set_command_line({"max_size": 3})
    assert settings().max_size == 3


def test_a_place_in_the_environment_overrules_a_directory_in_a_file(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EJCACHE=PLACE names the cache whatever a file says."""
    user.write_text('dir = "/in-file"\n')
    monkeypatch.setenv("EJCACHE", "/in-environment")
    assert settings().dir == "/in-environment"


def test_the_users_file_counts_before_the_hosts(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting is taken from the first of the two files that has it."""
    host = tmp_path / "host.toml"
    host.write_text('namespace = "host"\nread_only = true\n')
    monkeypatch.setattr(directories, "HOST_FILE", host)
    user.write_text('namespace = "user"\n')
    assert (settings().namespace, settings().read_only) == ("user", True)
    assert settings()["read_only"].source == str(host)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_size = 'many'\n", "max_size in {path} cannot be 'many'"),
        ("max_siz = 3\n", "there is no setting max_siz (did you mean max_size?)"),
        ("enable_pgle = true\n", "a setting in a configuration file cannot be 'enable_pgle'"),
        ("max_size = \n", "the configuration file {path}: it is not TOML"),
        ("a = [" * 5_000, "the configuration file {path}: it is not TOML"),
        ("x" * 70_000, "the configuration file {path}: it is not a text file of at most 65536 bytes"),
        ("[max_size]\na = 1\n", "max_size in {path} cannot be "),
    ],
)
def test_what_cannot_be_used_is_one_problem(user: Path, text: str, sentence: str) -> None:
    """A value, a name or a file that cannot be used is reported in one sentence, and the default holds."""
    user.write_text(text)
    now = settings()
    assert now.max_size == -1
    (problem,) = now.problems
    assert str(problem).startswith(sentence.format(path=user))


def test_a_file_that_others_can_write_to_is_not_read(user: Path) -> None:
    """Another user could name a cache with code of their own there, so such a file is refused."""
    user.write_text("read_only = true\n")
    user.chmod(0o666)
    assert settings().read_only is False
    assert "another user owns it or can write to it" in str(settings().problems[0])


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop"])
def test_a_file_that_is_none(user: Path, kind: str) -> None:
    """A pipe, a directory or a loop of links in its place is one problem, and nothing waits for it."""
    if kind == "pipe":
        os.mkfifo(user)
    elif kind == "directory":
        user.mkdir()
    else:
        user.symlink_to(user)
    (problem,) = settings().problems
    assert isinstance(problem, ConfigFileError)


def test_a_link_is_followed_and_kept(user: Path, tmp_path: Path) -> None:
    """A file may be a link into a directory of configuration files; a change goes into the file, the link stays."""
    real = tmp_path / "dotfiles.toml"
    real.write_text("# mine\nread_only = true # why not\n")
    user.symlink_to(real)
    change_file(user_file(), {"max_size": "1GB", "namespace": None})
    assert user.is_symlink()
    assert real.read_text() == '# mine\nread_only = true # why not\nmax_size = "1GB"\n'
    assert settings().max_size == 10**9


def test_config_set_get_unset(capsys: pytest.CaptureFixture[str]) -> None:
    """`config set` writes the user's file, `config get` prints the value, `config unset` removes it."""
    assert main(["config", "set", "max_size=50GB", "read_only=yes", "xla_caches=all"]) == 0
    assert f"written to {user_file()}: max_size, read_only, xla_caches" in capsys.readouterr().out
    assert user_file().read_text() == 'max_size = "50GB"\nread_only = true\nxla_caches = "all"\n'
    assert main(["config", "get", "max_size"]) == 0
    assert capsys.readouterr().out == "50000000000\n"
    assert main(["config", "get", "xla_caches"]) == 0
    assert capsys.readouterr().out == "all\n"
    assert main(["config", "unset", "max_size"]) == 0
    assert main(["config", "get", "max_size"]) == 0
    assert capsys.readouterr().out.endswith("-1\n")


def test_config_set_refuses_what_the_setting_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name, value or target is a usage error, and no file is written."""
    for arguments in (["max_siz=3"], ["max_size=many"], ["activate=1"], ["max_size"], ["read_only=1", "--to", "me"]):
        assert main(["config", "set", *arguments]) == 2
    assert not user_file().exists()
    assert "did you mean max_size?" in capsys.readouterr().err


def test_config_set_does_not_write_into_the_file_what_was_meant_for_one_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--dir` names one cache, and the file is for all: the two together are refused, before and behind `config`."""
    for arguments in (
        ["--dir", str(tmp_path), "set"],
        ["set", "--dir", str(tmp_path)],
        ["unset", "--dir", "memory://x"],
    ):
        assert main(["config", *arguments, "max_size" if "unset" in arguments else "max_size=1GB"]) == 2
        assert "leave out --dir" in capsys.readouterr().err
    assert not user_file().exists()
