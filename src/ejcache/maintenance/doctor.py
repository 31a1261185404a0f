"""Makes the checks of `ejcache doctor`: of JAX, of a directory, and of shared storage.

A check of storage uses an object of its own, `v1/doctor/<process name>`, and one of a local directory a temporary
directory inside it. Both are deleted at the end. All checks together end within ten seconds: JAX is imported by another
process meanwhile, and storage that does not answer is given up.
"""

from __future__ import annotations

import os
import re
import stat
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import NoPermissionError, StorageCause, StoreError, StoreReadOnlyError
from ejcache.stores.contents import is_of_plain_jax
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.store import LocalStore
from ejcache.stores.network_filesystems import detect_filesystem
from ejcache.stores.sharing_detection import mounts
from ejcache.util.cores import cores
from ejcache.util.directory_access import decide_access
from ejcache.util.threads import CallTimeoutError, call_with_timeout
from ejcache.util.units import plural
from ejcache.util.worker_processes import python_of_ours
from ejcache.util.writer import process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.bucket.base import Bucket
    from ejcache.util.directory_access import Access


class CheckVerdict(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    """It was tried and it works."""
    WARNING = "warning"
    """It works, but not as it should."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not tried."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what was tried, in a word or two.
        verdict: the verdict.
        detail: one sentence on what was observed.
        advice: one sentence on what to do; empty if there is nothing to do.
    """

    name: str
    verdict: CheckVerdict
    detail: str
    advice: str = ""


def fine(name: str, detail: str) -> Check:
    """Make a check that found nothing wrong."""
    return Check(name, CheckVerdict.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """Make a check of something that works, but not as it should."""
    return Check(name, CheckVerdict.WARNING, detail, advice)


def failed(name: str, detail: object, advice: str) -> Check:
    """Make a check of something that does not work."""
    return Check(name, CheckVerdict.FAILED, str(detail), advice)


def skipped(name: str, why: str) -> Check:
    """Make a check that was not tried."""
    return Check(name, CheckVerdict.SKIPPED, why)


SECONDS: Final = 10.0
"""All checks together take at most so long."""
JAX_SECONDS: Final = 1.0
"""What is left for JAX when the storage has had its time."""
_ASK_JAX: Final = """
import jax
print(jax.__version__)
from ejcache.jax_integration import in_charge, missing_parts
kept, said = in_charge()
print(kept)
print("; ".join([said, *(f"it does not give {each}" for each in missing_parts())]))
"""
_ANOTHER_JAX: Final = "install versions of ejcache and JAX that fit"


class JaxCheck:
    """Whether JAX can be imported, and is built as ejcache expects: asked of another process, which starts at once."""

    def __init__(self) -> None:
        self._command = python_of_ours("-c", _ASK_JAX)
        self._problem = ""
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as exc:
            self._process = None
            self._problem = exc.strerror or str(exc)

    def close(self) -> None:
        """End the process, if it has not ended."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def result(self, *, end: float) -> Check:
        """Wait for the answer, until `end` by the monotonic clock."""
        name = "JAX"
        if self._process is None:
            return failed(name, f"{self._command[0]} could not be started: {self._problem}", "repair that Python")
        try:
            out, err = self._process.communicate(timeout=max(JAX_SECONDS, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return skipped(name, "not known: importing it takes longer than this command may")
        version, kept, said = (*out.splitlines(), "", "", "")[:3]
        if not version:
            why = (err.strip().splitlines() or ["no message"])[-1]
            return failed(name, f"JAX cannot be imported, {why}", f"repair its installation for {self._command[0]}")
        if self._process.returncode or not said:
            why = (err.strip().splitlines() or ["no message"])[-1]
            return failed(
                name, f"JAX {version} cannot be looked at: {why}", f"repair its installation for {self._command[0]}"
            )
        fits = kept == "ours" and "does not give" not in said
        return fine(name, said) if fits else warning(name, said, _ANOTHER_JAX)


_WRITABLE: Final = "make the directory this user's own (chown, chmod u+rwx), or set EJCACHE_READ_ONLY=1 to read only"
_ANOTHER: Final = "choose another directory (EJCACHE_DIR)"
_ENTRY: Final = b"ejcache doctor" * 4096
SLOW_DISK_SECONDS: Final = 1.0
"""A disk that takes longer to create, read and delete an entry is slow."""


_MOST_NAMES: Final = 10_000
"""Names at the top of a cache that are looked at for files of JAX's own cache."""
_REMOVALS: Final = {
    "gs": "`gcloud storage rm '{url}/*-cache' '{url}/*-atime'` removes them",
    "s3": "`aws s3 rm {url}/ --recursive --exclude '*' --include '*-cache' --include '*-atime'` removes them",
    "file": "`rm {url}/*-cache {url}/*-atime` removes them",
}


def _plain_jax(names: Iterable[str], url: str) -> str:
    """Say how many entries of JAX's own cache are among the names at the top of a cache, and what removes them."""
    number = sum(is_of_plain_jax(name) and name.endswith("-cache") for name in islice(names, _MOST_NAMES))
    if not number:
        return ""
    scheme, _, rest = url.partition("?")[0].rpartition("://")
    removal = _REMOVALS.get(scheme or "file", "their names end in -cache and -atime")
    many = f"{'at least ' if number == _MOST_NAMES else ''}{plural(number, 'entry', 'entries')}"
    place = rest if scheme in {"", "file"} else f"{scheme}://{rest}"
    return f"{many} of JAX's own cache, which ejcache leaves alone: {removal.format(url=place)}"


def check_directory(
    path: Path, *, read_only: bool = False, trusted: bool = False, local: bool = True
) -> Iterator[Check]:
    """Try what a cache needs of its directory. A missing directory is not created.

    Args:
        path: of the directory.
        read_only: only read.
        trusted: programs use it even if other users could have put code there.
        local: it belongs to this host; of a shared one, only the permissions are looked at.
    """
    writing = not read_only
    if local:
        access = Layout(path, trusted=trusted, writing=writing).access
    else:
        access = decide_access(path, hosts_share=True, writing=writing)
    there, directory = _permissions(path, read_only=read_only, otherwise=access.mend)
    yield directory
    if local:
        yield _trust(access)
    if local and there == path and (said := _plain_jax((each.name for each in path.iterdir()), str(path))):
        yield fine("plain JAX", said)
    if not local or read_only or directory.verdict is not CheckVerdict.OK or there is None:
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".ejcache-doctor-", dir=there) as scratch:
            yield _store(Path(scratch) / "cache")
    except OSError as exc:
        yield failed("write", f"{there} cannot be written to: {exc.strerror or exc}", _WRITABLE)


def _permissions(path: Path, *, read_only: bool, otherwise: str) -> tuple[Path | None, Check]:
    """Look at the directory, or at the one in which it would be created; None if it cannot be used.

    Args:
        path: of the directory.
        read_only: only read.
        otherwise: what mends it where programs do not use it; empty if they do.
    """
    name = "directory"
    try:
        there = next((each for each in (path, *path.parents) if each.exists()), path)
        mode = there.stat().st_mode
    except OSError as exc:
        return None, failed(name, f"{path} cannot be looked at: {exc.strerror or exc}", "check the path")
    if not stat.S_ISDIR(mode):
        return None, failed(name, f"{there} is not a directory", "name a directory")
    mode = stat.S_IMODE(mode)
    writable = os.access(there, os.W_OK | os.X_OK)
    if there != path:
        if writable:
            return there, fine(name, f"{path} does not exist yet, and can be created")
        advice = otherwise or _ANOTHER
        return None, failed(name, f"{path} does not exist, and {there} cannot be written to", advice)
    if not os.access(path, os.R_OK | os.X_OK):
        return None, failed(name, f"{path} cannot be read by this user (mode {mode:04o})", otherwise or _ANOTHER)
    if not read_only and not writable:
        advice = otherwise or _WRITABLE
        return path, warning(name, f"{path} can be read, not written, by this user (mode {mode:04o})", advice)
    if mode & stat.S_IWOTH:
        advice = "chmod o-w: entries are code, and everybody who can write there can make other users run it"
        return path, warning(name, f"{path} can be written to by everybody (mode {mode:04o})", advice)
    return path, fine(name, f"{path} (mode {mode:04o}, on {detect_filesystem(path, mounts())[0] or 'a file system'})")


def _trust(access: Access) -> Check:
    """Check whom programs trust in the directory, by the decision that they make themselves."""
    if access.why:
        return warning("trust", f"{access.why}; programs use a directory of their own instead", access.mend)
    if access.others:
        return fine("trust", "everybody who can write there is trusted, and programs load code from it")
    return fine("trust", "only this user and root could put code there")


def _store(place: Path) -> Check:
    name = "write"
    began = time.perf_counter()
    try:
        with LocalStore(place) as store:
            works = store.put("doctor", _ENTRY) and not store.put("doctor", b"second")
            works = works and store.get("doctor") == _ENTRY and store.delete("doctor")
    except StoreError as exc:
        return failed(name, exc, "free space, or use another directory")
    if not works:
        return failed(name, "a stored entry could not be read again", "use another disk")
    text = f"an entry was created once, read and deleted in {_text(began)}"
    is_slow = time.perf_counter() - began > SLOW_DISK_SECONDS
    return warning(name, text, "use a faster disk") if is_slow else fine(name, text)


OPERATION_SECONDS: Final = 3.0
"""Seconds for one operation, its retries included."""
_READS: Final = 5
_BUSY: Final = 2.0
"""Runnable threads for each processor from which on they wait for one another."""
_IDLE: Final = "run `ejcache doctor` again when this host is less busy"
FAR_SECONDS: Final = 0.25
"""A bucket that takes longer to read a small object is far away."""
_SKEW: Final = 30.0
_PROBE: Final = b"ejcache doctor: may be removed"

_NO_PORTAL: Final = "log in to the network, or let requests to the storage past the proxy (NO_PROXY)"
_CREDENTIALS: Final = {
    "gs": "`gcloud auth application-default login` or a key file in EASYDEL_GCS_CLIENT",
    "s3": "`aws sso login`, AWS_PROFILE, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
    "az": "`az login`, AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENDPOINTS: Final = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
"""The variables that lead to another server than the usual one, by the scheme of the URL."""
_REMEDIES: Final[dict[str, str]] = {
    StorageCause.THROTTLED: "the storage limits requests (429): wait, raise its quota, or start fewer processes",
    StorageCause.PORTAL: _NO_PORTAL,
    StorageCause.NO_ADDRESS: "correct the name, or this host's DNS",
    StorageCause.NO_KEY_FILE: "create the file of the credentials, or correct the variable that names it",
    StorageCause.BAD_KEY_FILE: "download the key file again, or name another file there",
    StorageCause.BAD_KEYS: "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    StorageCause.BAD_PROFILE: "correct AWS_PROFILE, or add the profile to ~/.aws/config",
    StorageCause.CREDENTIALS: "log in again or renew the credentials: {credentials}",
    StorageCause.REGION: "set AWS_DEFAULT_REGION to the region of the bucket",
    StorageCause.NO_BUCKET: "correct the bucket's name, create the bucket, or allow these credentials to see it",
}
_LIST: Final = "allow to list (storage.objects.list, s3:ListBucket): without it, storage answers 403 for what is absent"
_READ: Final = f"allow to read (storage.objects.get, s3:GetObject), and {_LIST}"
_WRITE: Final = "allow to create (storage.objects.create, s3:PutObject), or set EJCACHE_READ_ONLY=1 to read only"
_DELETE: Final = "allow to delete (storage.objects.delete, s3:DeleteObject): eviction, leases and journals need it"
_REACH: Final = "check the bucket's name, the network{endpoint}, and the credentials: {credentials}"
_MOUNT: Final = "check the network and the mount"
_CONDITIONS: Final = (
    "use storage (or an emulator, or a gateway) that honours conditional writes: otherwise several processes believe "
    "that they were first, and leases cannot be taken over"
)


def remedy(cause: str | None, url: str, *, otherwise: str = "") -> str:
    """Advise on an error of the storage at `url`; `otherwise` is the advice where the cause is not known."""
    scheme = re.sub("^abfss?$", "az", url.partition("://")[0])
    advice = _REMEDIES[cause] if cause is not None else otherwise or (_MOUNT if scheme == "file" else _REACH)
    endpoint = f" (and {_ENDPOINTS[scheme]}, if it is set)" if scheme in _ENDPOINTS else ""
    credentials = _CREDENTIALS.get(scheme, "those that fsspec takes")
    return advice.format(endpoint=endpoint, credentials=credentials)


def check_bucket(bucket: Bucket, *, end: float, read_only: bool = False) -> Iterator[Check]:
    """Try what a shared cache needs of `bucket`, one check after the other.

    Args:
        bucket: its retry policy is replaced by a less patient one, and its circuit breaker is removed, so that each
            check is tried whatever the one before found.
        end: when the storage is given up, by the monotonic clock.
        read_only: only read, as a job does that does not write.
    """
    bucket.breaker = None
    yield from _Checkup(bucket, end=end).run(read_only=read_only)


class _Checkup:
    """The steps of `check_bucket`. A step returns a sentence if all is well, or else a `Check`."""

    def __init__(self, bucket: Bucket, *, end: float) -> None:
        self._bucket = bucket
        self._end = end
        self._name = f"v1/doctor/{process_name()}"
        self._unlisted: StoreError | None = None
        self._has_answered = False

    def run(self, *, read_only: bool) -> Iterator[Check]:
        read = self._try("read", self._read_nothing)
        if read.verdict is CheckVerdict.OK:
            listed = self._try("plain JAX", self._list_plain_jax)
            yield from [listed] if listed.detail else []
        if read_only or read.verdict is CheckVerdict.FAILED:
            yield self._judge(read, readable=None)
            return
        created = self._try("create once", self._create_once, _WRITE)
        if created.verdict is not CheckVerdict.OK:
            yield self._judge(read, readable=None)
            yield created
            if self._has_created:
                yield self._try("write", self._delete, _DELETE)
            return
        again = self._try("read", self._read_again, _READ)
        yield self._judge(read, readable=again.verdict is CheckVerdict.OK) if self._unlisted is not None else again
        yield created
        yield self._try("clock", self._clock, _WRITE)
        yield self._try("latency", self._latency)
        yield self._try("write", self._delete, _DELETE)

    _has_created = False

    def _try(self, name: str, step: Callable[[], str | Check], otherwise: str = "") -> Check:
        left = self._end - time.monotonic()
        if left <= 0:
            return skipped(name, f"the storage had {SECONDS:.0f} s in all")
        self._limit_time()
        try:
            result = call_with_timeout(f"{self._bucket.url}: the storage", step, max(left, 0.1))
        except CallTimeoutError as exc:
            return self._busy(name, exc) or failed(name, exc, remedy(None, self._bucket.url, otherwise=otherwise))
        except StoreError as exc:
            last = exc.__cause__
            # The last try had no answer in time; storage that asks to slow down has answered.
            is_silent = isinstance(last, TransientError) and last.busy and not last.throttled
            if is_silent and (found := self._busy(name, exc)):
                return found
            if name == "create once" and isinstance(exc, StoreReadOnlyError):
                return warning(name, f"only reading works, and jobs here store nothing: {exc}", _WRITE)
            if isinstance(exc, NoPermissionError):
                return failed(name, exc, _READ)
            stays = f"; {self._bucket.url}/{self._name} stays" if name == "write" else ""
            return failed(name, exc, f"{remedy(exc.cause, self._bucket.url, otherwise=otherwise)}{stays}")
        self._has_answered = True
        return result if isinstance(result, Check) else fine(name, result)

    def _busy(self, name: str, problem: Exception) -> Check | None:
        """Return a warning if storage that answered before is now slow perhaps because of this host; else None."""
        if not (self._has_answered and (busy := busy_processors())):
            return None
        return warning(name, f"{problem}, but {busy}, so that this says nothing of the storage", _IDLE)

    def _limit_time(self) -> None:
        self._bucket.policy = RetryPolicy(deadline=max(0.5, min(OPERATION_SECONDS, self._end - time.monotonic())))

    def _judge(self, read: Check, *, readable: bool | None) -> Check:
        """Judge the first read; `readable` if an object that was made since can be read."""
        if self._unlisted is None:
            return read
        if readable:
            return warning("read", f"an absent object is answered by 403: {self._unlisted}", _LIST)
        return failed("read", self._unlisted, _READ)

    def _read_nothing(self) -> str | Check:
        began = time.perf_counter()
        try:
            # Not `stat`: the answer of S3 to that does not tell a missing object from a missing bucket.
            found = self._bucket.read(self._name, length=1)
        except NoPermissionError as exc:
            self._unlisted = exc
            return "403"
        if found is not None:
            detail = f"{self._bucket.url} answers with {found.data!r}… for an object that is not there: a login page?"
            return failed("read", detail, _NO_PORTAL)
        return f"answered in {_text(began)}, connecting included"

    def _list_plain_jax(self) -> str:
        with suppress(StoreError):  # whether these credentials may list is another check's
            return _plain_jax((info.name for info in self._bucket.walk("", deep=False)), self._bucket.url)
        return ""

    def _create_once(self) -> str | Check:
        name, began = "create once", time.perf_counter()
        if not self._bucket.create(self._name, _PROBE):
            what = "the storage answers that a new object exists already"
            return failed(name, what, "ask the operators of the storage")
        self._has_created = True
        taken = _text(began)
        if self._bucket.create(self._name, b"second"):
            return failed(name, "an object that exists was created again: conditions are ignored", _CONDITIONS)
        before = self._bucket.stat(self._name)
        version = "" if before is None else before.version
        first = self._bucket.write(self._name, _PROBE + b"!", version=version)
        if first is None or self._bucket.write(self._name, _PROBE, version=version) is not None:
            detail = "a conditional write succeeds although its condition does not hold, or fails although it holds"
            return failed(name, detail, _CONDITIONS)
        if not self._bucket.conditional:
            return f"in {taken}; the writer compares conditions itself: at worst two hosts compile one program at once"
        return f"in {taken}; a second creation, and a write whose condition does not hold, are refused"

    def _read_again(self) -> str | Check:
        expected = _PROBE + b"!"
        whole, part = self._bucket.read(self._name), self._bucket.read(self._name, length=7)
        if whole is None or part is None:
            return failed("read", "an object that was just written is not found", "use storage that shows its writes")
        if (whole.data, part.data) != (expected, expected[:7]):
            return failed("read", "other bytes come back than were written", "use other storage: this one damages them")
        return "what was written comes back, whole and in part"

    def _clock(self) -> str | Check:
        began = time.time()
        there = self._bucket.now(f"{self._name}-clock")
        ended = time.time()
        if there is None:
            return skipped("clock", "the storage does not say when an object was made")
        # Some storages give whole seconds.
        skew = max(0.0, began - 1 - there, there - ended - 1)
        if skew > _SKEW:
            advice = "set this host's clock (NTP): ages, the order of eviction and credentials depend on it"
            return warning("clock", f"the clocks of the storage and of this host differ by {skew:.0f} s", advice)
        return "the clocks of the storage and of this host agree" if skew == 0 else f"{skew:.1f} s apart"

    def _latency(self) -> str | Check:
        taken: list[float] = []
        while len(taken) < _READS and (not taken or time.monotonic() < self._end):
            self._limit_time()
            began = time.perf_counter()
            self._bucket.read(self._name, length=len(_PROBE))
            taken.append(time.perf_counter() - began)
        middle = statistics.median(taken)
        text = f"{middle * 1000:.0f} ms to read a small object (worst of {len(taken)}: {max(taken) * 1000:.0f} ms)"
        if middle <= FAR_SECONDS:
            return text
        if busy := busy_processors():
            return warning("latency", f"{text}, but {busy}", _IDLE)
        return warning("latency", text, "use a bucket in the region where the job runs")

    def _delete(self) -> str | Check:
        began = time.perf_counter()
        deleted = self._bucket.delete(self._name)
        if not deleted or self._bucket.stat(self._name) is not None:
            return failed("write", "a deleted object is still there", "use storage that shows its deletions")
        return f"deleted in {_text(began)}"


def busy_processors() -> str:
    """Say how busy the processors of this host are, if programs wait for them long enough to pass for slow storage."""
    load, number = os.getloadavg()[0], cores()
    return f"this host has a load of {load:.0f} on {plural(number, 'processor')}" if load > _BUSY * number else ""


def _text(began: float) -> str:
    seconds = time.perf_counter() - began
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
