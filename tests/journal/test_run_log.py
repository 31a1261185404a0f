"""The file in which the processes of one `ejcache run` count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.journal.line import encode_line
from ejcache.journal.run_log import read_counts

if TYPE_CHECKING:
    from pathlib import Path


def test_an_outer_run_that_has_ended(tmp_path: Path) -> None:
    """A run inside of another one counts all its processes, also if the file of the outer run is gone."""
    lines = [encode_line(counts={"hits": 1}, process={"pid": pid}) + b"\n" for pid in (1, 2, 3)]
    (tmp_path / "inner").write_bytes(b"".join(lines))
    (tmp_path / "outer").write_bytes(b"")
    assert read_counts(str(tmp_path / "inner"), also_append_to=str(tmp_path / "outer")).amounts == {"hits": 3}
    assert (tmp_path / "outer").read_bytes() == b"".join(lines)
    gone = read_counts(str(tmp_path / "inner"), also_append_to=str(tmp_path / "gone"))
    assert (gone.amounts, gone.processes) == ({"hits": 3}, {1, 2, 3})
    assert not (tmp_path / "gone").exists()
