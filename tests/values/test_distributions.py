"""The digest of what is installed."""

from __future__ import annotations

import sys

from ejcache.values.distributions import distributions_digest


def test_another_version_of_an_old_installation_is_another_digest(tmp_path, monkeypatch):
    """Its metadata are a file, or PKG-INFO in a directory; its name need not have a version."""

    def digest(place, kind, version):
        metadata = tmp_path / place / "old.egg-info"
        metadata.parent.mkdir()
        if kind == "directory":
            metadata.mkdir()
            metadata /= "PKG-INFO"
        metadata.write_text(f"Name: old\nVersion: {version}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path / place)])
        return distributions_digest()

    for kind in ("file", "directory"):
        first, same, other = (digest(f"{kind} {number}", kind, version) for number, version in enumerate("112"))
        assert first == same != other
