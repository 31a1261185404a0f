"""What pip wrote down of a library is believed while the file looks as it was installed, and read otherwise."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import time

import pytest

from ejcache.jax_integration.lowering.native_libraries import LibraryDigests

CONTENT = b"\x7fELF of the wheel"
THEN = time.time() - 3600


class Environment:
    """A directory of distributions with one library, as an installer leaves it."""

    def __init__(self, site, *, installer="pip", distribution="jaxlib", library="jaxlib/_jax.so"):
        self.library = site / library
        metadata = site / f"{distribution}-0.12.0.dist-info"
        self.library.parent.mkdir(parents=True)
        metadata.mkdir()
        self.library.write_bytes(CONTENT)
        digest = base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).rstrip(b"=").decode()
        self.record = metadata / "RECORD"
        rows = [f"{library},sha256={digest},{len(CONTENT)}", f'"{distribution}/a,b.py",sha256=x,1', "jaxlib/c.py,,"]
        self.record.write_text("\n".join(rows) + "\n")
        (metadata / "INSTALLER").write_text(installer + "\n")
        os.utime(self.library, (THEN - 1, THEN - 1))
        os.utime(self.record, (THEN, THEN))

    def digest(self):
        """The digest as a new process makes it, and whether the library was read for it."""
        read = []

        def digest(path):
            read.append(path)
            return hashlib.sha256(path.read_bytes()).hexdigest()

        return LibraryDigests(read=digest).digest_of([self.library]), bool(read)

    def is_read(self):
        return self.digest()[1]


@pytest.fixture
def installed(tmp_path):
    """By pip."""
    return Environment(tmp_path / "site-packages")


def test_what_pip_installed_is_not_read(installed):
    """The digest is that of the content, without a look at it; so keys are those of a host that reads."""
    assert not installed.is_read()
    recorded = installed.digest()[0]
    (installed.record.parent / "INSTALLER").write_text("uv")
    assert installed.is_read()
    assert installed.digest()[0] == recorded


def test_the_package_of_a_plug_in_is_found(tmp_path):
    """A package may be in a namespace, and its distribution be called otherwise."""
    library = "jax_plugins/xla_cuda13/xla_cuda_plugin.so"
    plugin = Environment(tmp_path / "site", distribution="jax_cuda13_pjrt", library=library)
    assert not plugin.is_read()


def set_times(installed, *, modified):
    os.utime(installed.library, (modified, modified))


CHANGES = {
    "no longer installed by pip": lambda env: (env.record.parent / "INSTALLER").write_text("uv"),
    "another size": lambda env: (env.library.write_bytes(CONTENT + b"!"), set_times(env, modified=THEN - 1)),
    "linked elsewhere": lambda env: os.link(env.library, env.library.with_name("other")),
    "a link": lambda env: (shutil.move(env.library, env.library.with_name("moved")),
                           env.library.symlink_to("moved")),
    "modified at once after pip": lambda env: set_times(env, modified=THEN + 1),
    "of one time with all files": lambda env: set_times(env, modified=THEN),
    "modified long before": lambda env: set_times(env, modified=THEN - 121),
    "replaced in place": lambda env: env.library.write_bytes(CONTENT[::-1]),
    "not in RECORD": lambda env: (env.record.write_text("jaxlib/x,sha256=a,1\n"), os.utime(env.record, (THEN, THEN))),
    "RECORD is damaged": lambda env: (env.record.write_bytes(b"\xff\xfe,,\n"), os.utime(env.record, (THEN, THEN))),
    "no RECORD": lambda env: env.record.unlink(),
    "a digest of another kind": lambda env: (
        env.record.write_text(f"jaxlib/_jax.so,md5=abcd,{len(CONTENT)}\n"), os.utime(env.record, (THEN, THEN))),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_looks_otherwise_is_read(installed, change):
    """Each of the conditions alone has the file read."""
    change(installed)
    assert installed.is_read()


def test_a_copy_that_keeps_the_times_is_read(installed, tmp_path, monkeypatch):
    """`cp -p` of a library of equal size and times over the one of pip: the time of its change tells a minute later."""
    other = tmp_path / "other.so"
    other.write_bytes(CONTENT[::-1])
    os.utime(other, (THEN - 1, THEN - 1))
    shutil.copy2(other, installed.library)
    at_once = installed.digest()[0]
    monkeypatch.setattr("ejcache.keys.file_digests._CHANGED_AFTER", -1.0)  # as if it was changed a minute later
    assert installed.is_read()
    assert installed.digest()[0] != at_once


def test_a_package_behind_a_link_is_read(installed, tmp_path):
    """RECORD says nothing of what a link leads to."""
    shutil.move(installed.library.parent, tmp_path / "elsewhere")
    installed.library.parent.symlink_to(tmp_path / "elsewhere")
    assert installed.is_read()
