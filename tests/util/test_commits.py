"""The commit of a checkout is the one that git says, however git keeps it."""

from __future__ import annotations

import subprocess

import pytest

from ejcache.util.git_commit import commit_of

WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(place, *arguments):
    done = subprocess.run(["git", *WHO, *arguments], cwd=place, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit, and a directory below."""
    place = tmp_path / "here"
    (place / "deep" / "er").mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    git(place, "commit", "-q", "--allow-empty", "-m", "one")
    return place


def test_branch_packed_detached_and_worktree(checkout, tmp_path):
    commit = git(checkout, "rev-parse", "HEAD")[:12]
    assert commit_of(checkout / "deep" / "er") == commit
    git(checkout, "pack-refs", "--all")
    commit_of.cache_clear()
    assert commit_of(checkout) == commit
    git(checkout, "worktree", "add", "-q", "-b", "other", tmp_path / "there")
    assert commit_of(tmp_path / "there") == commit
    git(checkout, "checkout", "-q", "--detach")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "two")
    commit_of.cache_clear()
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")[:12] != commit


@pytest.mark.parametrize(
    "head", [b"ref: refs/heads/none", b"", b"\xff\xfe", b"ref: ../../../x", b"<b>", b"g" * 40, b"ref: a\0b"]
)
def test_no_commit(tmp_path, head):
    """What is no checkout, or a damaged one, has none."""
    assert commit_of(tmp_path / "nowhere") == ""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(head)
    assert commit_of(tmp_path) == ""
