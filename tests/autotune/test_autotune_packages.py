"""Tuned configurations in installed packages: found, ranked below all else, and harmless if they are broken."""

from __future__ import annotations

import sys

import pytest
from autotune_helpers import key, record
from cli_helpers import ejcache

from ejcache.autotune import AutotuneStore, Source
from ejcache.autotune.records.record import encode_record
from ejcache.autotune.records.shipped import package_seeds

RAISING = "raise RuntimeError('the package was imported')\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory of installed packages; `install(name, entry, records)` adds one whose import fails."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def install(name, value, *records, directory="tuned"):
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(RAISING)
        for item in records:
            path = package / directory / item.key.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_record(item))
        about = tmp_path / "site" / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[ejcache.seeds]\n{name} = {value}\n")

    package_seeds.cache_clear()
    yield install
    package_seeds.cache_clear()


def test_a_package_ships_records(site, tmp_path):
    """A package's records are found without an import of the package, and each count as imported."""
    site("kernels", "kernels.tuned", record(block=32))
    store = AutotuneStore(str(tmp_path / "user"))
    found = store.find(key())
    assert (found.source, found.layer, found.record.configuration) == (
        Source.IMPORTED,
        "package kernels",
        {"block": 32},
    )
    assert "kernels" not in sys.modules
    assert [item.layer for item in store.records()] == ["package kernels"]
    assert store.stats()["broken_packages"] == 0


def test_what_a_user_has_goes_before_what_packages_ship(site, tmp_path):
    """Own records, then those of the shared store, then packages in the order of their names."""
    site("bbb", "bbb.tuned", record(block=5))
    site("aaa", "aaa.tuned", record(block=4))
    layers = [AutotuneStore(str(tmp_path / name), seeds=()) for name in ("user", "shared")]

    def chosen():
        store = AutotuneStore(str(tmp_path / "user"), shared=str(tmp_path / "shared"))
        return store.find(key()).record.configuration["block"]

    assert chosen() == 4
    for block, layer in ((2, layers[1]), (1, layers[0])):
        layer.publish(record(block=block))
        assert chosen() == block


def test_packages_are_looked_at_only_if_nothing_better_is_found(site, tmp_path):
    """A call with a record of its own does not make a process read the metadata of all packages."""
    site("kernels", "kernels.tuned", record(block=32))
    store = AutotuneStore(str(tmp_path / "user"))
    AutotuneStore(str(tmp_path / "user"), seeds=()).publish(record(block=1))
    assert store.find(key()).record.configuration == {"block": 1}
    assert package_seeds.cache_info().misses == 0
    assert AutotuneStore(str(tmp_path / "other"), seeds=()).find(key()) is None
    assert package_seeds.cache_info().misses == 0


@pytest.mark.parametrize("value", ["broken.nothing", "no_such_package.tuned", "broken.tuned:x", "..", "broken.a-b"])
def test_a_broken_entry_is_one_warning_and_counted(site, tmp_path, caplog, value):
    """An entry that names no directory costs its own records, and no others."""
    site("broken", value)
    site("kernels", "kernels.tuned", record(block=32))
    for _ in range(2):
        store = AutotuneStore(str(tmp_path / "user"))
        assert store.find(key()).record.configuration == {"block": 32}
        assert store.stats()["broken_packages"] == 1
    assert len([item for item in caplog.records if "broken" in item.getMessage()]) == 1


def test_metadata_that_cannot_be_read_is_one_warning_and_counted(site, tmp_path, monkeypatch):
    """A broken installation of another package does not keep a program from running."""

    def fail(**_):
        raise ValueError("no such encoding")

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    store = AutotuneStore(str(tmp_path / "user"))
    assert store.find(key()) is None
    assert store.stats()["broken_packages"] == 1


def test_a_damaged_record_of_a_package_is_a_miss(site, tmp_path):
    """It is counted and stays where it is: the package is not ours to change."""
    site("kernels", "kernels.tuned", record(block=32))
    (path,) = (tmp_path / "site").rglob("*.json")
    path.write_bytes(path.read_bytes()[:100])
    store = AutotuneStore(str(tmp_path / "user"))
    assert store.find(key()) is None
    assert store.stats()["corrupt"] == 1
    assert path.exists()


def test_a_directory_from_push_is_what_a_package_ships(site, tmp_path, monkeypatch):
    """`push` writes the directory, and `stats` lists it with the layers and counts the broken entries."""
    AutotuneStore(str(tmp_path / "measured"), seeds=()).publish(record(block=8))
    site("kernels", "kernels.data.tables")
    site("broken", "broken.nothing")
    pushed = ejcache("tuned", "push", tmp_path / "site" / "kernels" / "data" / "tables", "--dir", tmp_path / "measured")
    assert pushed.status == 0, pushed.err
    monkeypatch.setenv("EJCACHE_AUTOTUNE_DIR", str(tmp_path / "user"))
    said = ejcache("tuned", "stats", "--json").json
    assert {layer["name"]: layer["total_records"] for layer in said["layers"]}["package kernels"] == 1
    assert (said["broken_packages"], said["errors"]) == (1, 0)
