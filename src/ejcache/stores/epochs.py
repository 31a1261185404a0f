"""Finds the place within a cache where its entries are: the one that its policy names, and no other.

    v1/policy.json        says which epoch the cache is in (`maintenance.stored_policy`), by "epoch" and "former"
    v1/in-<epoch>/        everything that belongs to this epoch: entries, leases, quarantine and XLA's own files, under
                          the names that they have without an epoch (`bucket.object_names`)

`ejcache recall --all` begins an epoch, under a random name. Whoever knows the policy opens the stores at that place and
looks nowhere else; what others go on storing lies at the place before, where nobody looks. A cache of which nothing was
ever recalled so has the place without a name, and every object where it always was. No store knows of epochs: a place
is a folder in the path at which a store is opened.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.errors import MALFORMED, EntryCorruptError, EntryError, EntryVersionError, StoreUnavailableError
from ejcache.util.directory_access import POLICY

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket
    from ejcache.bucket.folder import BucketFolder

VERSION: Final = 1
FORMAT: Final = "ejcache-policy"
MAX_BYTES: Final = 128 << 10
"""A larger object is not a policy, and is not read to its end."""
FIRST: Final = ""
"""The place without a name."""
MOST_FORMER: Final = 64
_NAME: Final = re.compile(r"[0-9a-f]{16}")
_FOLDER: Final = re.compile(r"v1/in-([0-9a-f]{16})/")
_HIGHEST: Final = 1 << 36
"""Seconds since 1970, of the year 4147: the document has a most size."""


class FormerEpoch(NamedTuple):
    """An epoch that is over: its name, and when it ended, in seconds since 1970 by the storage's clock."""

    epoch: str
    ended: float


class Epochs(NamedTuple):
    """The epoch that a cache is in, and those that are over, the last one at the end."""

    present: str = FIRST
    former: tuple[FormerEpoch, ...] = ()

    def ended(self, now: float) -> Epochs:
        """Return what is so once the present epoch has ended: another one has begun, under a new name."""
        former = (*(each for each in self.former if each.epoch != self.present), FormerEpoch(self.present, now))
        return Epochs(secrets.token_hex(8), former[-MOST_FORMER:])


def folder_of(epoch: str) -> str:
    """Return the folder of an epoch within a cache, with the slash at its end; empty for the place without a name."""
    return f"v1/in-{epoch}/" if epoch else ""


def tier_folder(epoch: str) -> str:
    """Return the folder of an epoch within what a host keeps of a cache; empty for the place without a name."""
    return f"in-{epoch}" if epoch else ""


def spool_folder(epoch: str) -> str:
    """Return where, within what a host keeps of a cache, the pending uploads of an epoch are noted."""
    return f"{tier_folder(epoch)}/spool" if epoch else "scratch/spool"


def split_name(name: str) -> tuple[str, str]:
    """Split the name of an object into the epoch that it lies in, and its name there."""
    found = _FOLDER.match(name)
    return (FIRST, name) if found is None else (found[1], name[found.end() :])


def policy_fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a policy, without its format and version.

    Raises:
        EntryCorruptError: `data` is not a policy.
        EntryVersionError: the policy is of a later version.
    """
    if len(data) > MAX_BYTES:
        raise EntryCorruptError(f"larger than a policy may be ({MAX_BYTES} bytes)")
    try:
        fields = json.loads(data)
        is_ours = fields.pop("format") == FORMAT
        version = fields.pop("version")
    except MALFORMED as exc:
        raise EntryCorruptError("not the policy of a cache") from exc
    if not is_ours:
        raise EntryCorruptError("not the policy of a cache")
    if version != VERSION:
        raise EntryVersionError(f"a policy of version {str(version)[:40]}; this code reads version {VERSION}")
    return dict(fields)


def decode_epochs(fields: dict[str, Any]) -> Epochs:
    """Return the epochs that the fields of a policy name; raises EntryCorruptError if they are none."""
    try:
        present, former = fields.get("epoch", FIRST), fields.get("former", [])
        decoded = tuple(FormerEpoch(_name(each["epoch"]), _moment(each["ended"])) for each in former)
        epochs = Epochs(_name(present), decoded)
    except MALFORMED as exc:
        raise EntryCorruptError("the policy's epoch is damaged") from exc
    if len(decoded) > MOST_FORMER or epochs.present in {each.epoch for each in decoded}:
        raise EntryCorruptError("the policy's epoch is damaged")
    return epochs


def encode_epochs(epochs: Epochs) -> dict[str, Any]:
    """Return the fields of a policy that name these epochs; nothing if the cache was always in the first one."""
    if epochs == Epochs():
        return {}
    former = [{"epoch": each.epoch, "ended": each.ended} for each in epochs.former]
    return {"epoch": epochs.present, "former": former}


def _name(text: Any) -> str:
    if not isinstance(text, str) or (text and _NAME.fullmatch(text) is None):
        raise ValueError("not the name of an epoch")
    return text


def _moment(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < _HIGHEST:
        raise ValueError("not a time")
    return float(value)


def present_place(root: Bucket) -> BucketFolder:
    """Return the objects of the epoch that a shared cache is in; its policy is read before the first request.

    Args:
        root: of the cache.

    Requests raise StoreUnavailableError if the policy cannot be read, since nobody knows then where the entries are.
    """
    from ejcache.bucket.folder import BucketFolder  # a room that no hit needs

    def find() -> str:
        found = root.read(POLICY, length=MAX_BYTES + 1)
        try:
            return "" if found is None else folder_of(decode_epochs(policy_fields(found.data)).present)
        except EntryError as exc:
            raise StoreUnavailableError(
                f"{root.url}/{POLICY}, which says where the entries are, is damaged: {exc}"
            ) from exc

    return BucketFolder(root, find)
