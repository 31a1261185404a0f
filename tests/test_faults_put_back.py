"""The faults that `tools/faults.py` puts back: each row of the index has its patch, and each patch its row."""

from __future__ import annotations

import faults


def test_each_fault_has_a_patch_and_each_patch_a_fault():
    rows = faults.read_index()
    assert rows
    assert sorted(fault.patch for fault in rows) == sorted(faults.FAULTS.glob("*.patch"))
    assert all(fault.patch.read_text().startswith("diff --git a/src/") for fault in rows)
    assert all(fault.tests and fault.wrong.endswith(".") for fault in rows)
