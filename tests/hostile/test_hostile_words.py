"""Text that others have written, or that a person has mistyped, ends in a sentence and in no other error."""

from __future__ import annotations

import math

import pytest
from soak_turns import some

from ejcache.autotune.ejkernel.cache import operation_directory
from ejcache.errors import UsageError
from ejcache.journal.run_log import RunTotal
from ejcache.journal.start_records import decode_line
from ejcache.stores.location import Location

NUMBERS = ("1e999", "9" * 400, "9" * 5000, "NaN", "[]", "{}", "null", '"x"', "[" * 5000)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_damaged_line_of_counts_changes_nothing(number):
    """The report of a run and the log of a host skip what is not in their format."""
    total = RunTotal()
    total.add(f'{{"v": 1, "process": {{"pid": 1}}, "counts": {{"hits": {number}}}}}'.encode())
    total.add(f'{{"v": 1, "process": {{"pid": {number}}}, "counts": {{}}}}'.encode())
    total.add(b'{"v": 1, "process": {"pid": 2}, "counts": {"hits": 1}}')
    assert 2 in total.processes
    for line in (
        f'{{"v": 1, "process": {{}}, "uses": {{"k": [{number}, 1, null]}}}}',
        f'{{"v": 1, "process": {{}}, "uses": {{"k": [1.0, {number}, null]}}}}',
        f'{{"v": 1, "process": {{}}, "uses": {{"k": [1.0, 1, {number}]}}}}',
        f'{{"v": 1, "process": {{}}, "uses": {number}, "at": {number}}}',
    ):
        found = decode_line(line.encode())
        assert found is None or all(math.isfinite(part) for use in found.uses.values() for part in use if part)


@pytest.mark.parametrize("url", some(["file://x[", "gs://[", "s3://b[/x"], every=3))
def test_a_url_of_an_impossible_form_is_refused(url, run_forked):
    """In one sentence that names it, and without an error in the program that it was set for."""
    program = "import jax; print(jax.jit(lambda x: x + 1)(1))"
    done = run_forked(program, env={"EJCACHE": url, "JAX_PLATFORMS": "cpu"})
    assert done.stdout == "2\n"
    assert "Traceback" not in done.stderr
    if url.startswith("file:"):
        with pytest.raises(UsageError, match="file:"):
            Location.parse(url)


def test_the_directory_of_ejkernel_does_not_fall_back_to_one_that_others_can_write_to(tmp_path, monkeypatch):
    """Where there is no home directory, a directory of the working directory counts only if it is the user's own."""
    monkeypatch.setenv("HOME", "/dev/null/nowhere")
    monkeypatch.chdir(tmp_path)
    name = f".{operation_directory().rpartition('/')[2].lstrip('.')}"
    (tmp_path / name).mkdir()
    assert operation_directory() == str(tmp_path / name)
    (tmp_path / name).chmod(0o777)
    assert operation_directory() != str(tmp_path / name)
