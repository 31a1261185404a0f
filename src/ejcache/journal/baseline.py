"""The baseline of the counters of a shared cache: the sums of the journals that were folded, and the names of these.

    v1/counters/=baseline     JSON: sums, written (seconds since the epoch), folded (names and versions)

The counters of the cache are the sums of the baseline and of all journals that it does not name. A pass first adds the
sums of journals to the baseline, with their names, on the condition that nobody else has changed it, then writes the
snapshot of uses, and then deletes them: sums are counted once, and uses at most once, also if the pass dies in between.
A reset is a journal of the negated sums.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT
from ejcache.bucket.object_names import COUNTERS
from ejcache.errors import MALFORMED
from ejcache.journal.objects import finite_sums
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.bucket.base import Blob, Bucket
MAX_BASELINE: Final = 4 << 20
"""A larger object holds no counters of ours, and is not read."""

_BASELINE: Final = f"{COUNTERS}=baseline"


class Baseline(NamedTuple):
    """The sums of what was folded, and the names of it that may still be there."""

    sums: dict[str, float]
    folded: dict[str, str]
    version: str

    @classmethod
    def read(cls, objects: Bucket) -> Baseline:
        """Return the baseline; raises StoreError if the storage fails."""
        blob = _read_limited(objects, _BASELINE)
        if blob is None:
            return cls({}, {}, ABSENT)
        folded: dict[str, str] = {}
        with contextlib.suppress(*MALFORMED):
            folded = {str(name): str(version) for name, version in json.loads(blob.data)["folded"].items()}
        return cls(decode_counters(blob), folded, blob.version)

    def fold(self, objects: Bucket, found: Mapping[str, tuple[str, Mapping[str, float]]], listed: set[str]) -> bool:
        """Add sums to the baseline; False if another process has changed it meanwhile.

        Args:
            objects: of the cache.
            found: version and sums of each object that is folded now.
            listed: the names of all objects that there are; what is not there any more need not be named.
        """
        sums = Counter(self.sums)
        for _, amounts in found.values():
            sums.update(amounts)
        folded = {name: version for name, version in self.folded.items() if name in listed}
        folded |= {name: version for name, (version, _) in found.items()}
        if folded == self.folded and not found:
            return True
        data = {"sums": sums, "folded": folded, "written": time.time()}
        return objects.write(_BASELINE, json.dumps(data, sort_keys=True).encode(), version=self.version) is not None


def decode_counters(blob: Blob | None) -> dict[str, float]:
    """Read the sums in an object. Absent, damaged or absurd counters are none: they are not worth an error."""
    try:
        return {} if blob is None or blob.size > MAX_BASELINE else finite_sums(json.loads(blob.data)["sums"])
    except MALFORMED:
        return {}


def _read_limited(objects: Bucket, name: str) -> Blob | None:
    return objects.read(name, length=MAX_BASELINE + 1)
