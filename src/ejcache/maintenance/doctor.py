"""The checks of `ejcache doctor`: of this installation, of a directory, and of a bucket.

What a check of `ejcache doctor` finds, and the checks of this installation rather than of a place for a cache.

Whether a directory can hold a cache, a local or a shared one.

Checks that write use a temporary directory inside it, which is deleted again.

Whether a bucket, or a directory that hosts share, can hold a cache, and what an error of it means.

All checks together take at most ten seconds. Every check uses an object of its own, `v1/doctor/<process name>`, which
is deleted at the end.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shutil
import stat
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import process_name
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key
from ejcache.settings.resolve import environment_variable
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.store import LocalStore
from ejcache.stores.location import detect_filesystem, detect_network_filesystem
from ejcache.util.files import read_regular
from ejcache.util.locks import exclusive
from ejcache.util.text import format_age, format_size
from ejcache.util.worker_processes import python_of_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.bucket.base import Bucket
    from ejcache.settings.table import Settings
    from ejcache.util.access import Access


class CheckVerdict(StrEnum):
    """The verdict of a check. Codes are append-only."""

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
    """A check that found nothing wrong."""
    return Check(name, CheckVerdict.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """A check of something that works, but not as it should."""
    return Check(name, CheckVerdict.WARNING, detail, advice)


def failed(name: str, detail: object, advice: str) -> Check:
    """A check of something that does not work."""
    return Check(name, CheckVerdict.FAILED, str(detail), advice)


def skipped(name: str, why: str) -> Check:
    """A check that was not made."""
    return Check(name, CheckVerdict.SKIPPED, why)


def _all_skipped(names: Iterable[str], why: str) -> Iterator[Check]:
    return (skipped(name, why) for name in names)


_FEWEST_FILES: Final = 512
_JAX_SECONDS: Final = 20.0
_ASK_JAX: Final = """
try:
    import jax
except ImportError:
    print("absent")
else:
    print(jax.__version__)
    try:
        from ejcache.jax_integration.seam import patch
        print("; ".join(patch.mismatches()))
    except (ImportError, AttributeError) as exc:
        print(exc)
"""


def check_installation(settings: Settings) -> Iterator[Check]:
    """Whether this JAX, JAX's plug-ins, the settings and the limits of processes are as ejcache needs them.

    Args:
        settings: the settings of this command.
    """
    yield _jax(tuple(python_of_ours("-c", _ASK_JAX)))
    yield _plug_in()
    problems = "; ".join(str(problem) for problem in settings.problems)
    if problems:
        yield warning("settings", problems, "correct them; ejcache config shows what is used instead")
    else:
        yield fine("settings", "every variable and file could be read")
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@functools.cache
def _jax(command: tuple[str, ...]) -> Check:
    """Whether JAX is built as expected, by another process: the command line does not import JAX."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_JAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return skipped("JAX", f"importing JAX took longer than {_JAX_SECONDS:.0f} s, so its version is not known")
    except OSError as exc:
        return skipped("JAX", f"{command[0]} could not be started to import JAX: {exc.strerror or exc}")
    version, _, rest = done.stdout.partition("\n")
    if not version:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return warning("JAX", f"import jax fails: {why}", "repair the installation of JAX")
    if version == "absent":
        return skipped("JAX", f"JAX is not installed for {command[0]}")
    if rest.strip():
        return warning(
            "JAX",
            f"JAX {version} is not built as expected, so JAX's own cache stays in use: {rest.strip()}",
            "install versions of ejcache and JAX that fit",
        )
    return fine("JAX", f"JAX {version} is built as expected")


def _plug_in() -> Check:
    found = any(point.name == "ejcache" for point in importlib.metadata.entry_points(group="jax_plugins"))
    if not (found or importlib.util.find_spec("jax_plugins.ejcache")):
        return warning(
            "plug-in",
            "JAX does not find ejcache among its plug-ins, so EJCACHE=1 enables nothing",
            "install ejcache again",
        )
    value = environment_variable("EJCACHE") or "not set, so programs enable the cache themselves"
    return fine("plug-in", f"JAX finds it, and EJCACHE is {value}")


def _open_files(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY:
        return fine("open files", "no limit")
    detail = f"a process may open {limit:,} files"
    if limit >= _FEWEST_FILES:
        return fine("open files", detail)
    advice = f"ulimit -n {_FEWEST_FILES}, or more, before the program starts"
    return warning("open files", f"{detail}; a program with a cache in a bucket can need more", advice)


_LITTLE: Final = 1 << 30
_ENTRY: Final = b"ejcache doctor" * 4096
_SLOW_SECONDS: Final = 1.0
_AHEAD: Final = 60.0
"""Seconds that a use may lie in the future."""
_SET_CLOCK: Final = "set this host's clock (NTP): ages, the order of eviction and credentials depend on it"


def check_local_directory(
    path: Path, *, max_size: int = -1, read_only: bool = False, trusted: bool = False
) -> Iterator[Check]:
    """Try what a local cache needs of its directory. A missing directory is not created.

    Args:
        path: of the directory.
        max_size: bytes that the cache may hold; -1 for no limit.
        read_only: only read.
        trusted: programs use it even if other users could have put code there.
    """
    there, directory = _directory(path, read_only=read_only)
    yield directory
    trust = _trust(Layout(path, trusted=trusted, writing=not read_only).access)
    yield trust
    if there is None:
        yield from _all_skipped(("free space", "locks", "store"), "there is no directory to try it in")
        return
    yield _space(there, wanted=max_size, held=_held(path))
    if os.path.isdir(path / "v1" / "local"):  # noqa: PTH112 (raises nothing for one that is closed)
        if trust.verdict is CheckVerdict.OK:
            yield from _structures(path, trusted=trusted)
        else:
            yield skipped("structures", "programs do not use them")
    if read_only:
        yield from _all_skipped(("locks", "store"), "the cache is read-only")
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".ejcache-doctor-", dir=there) as scratch:
            yield _locks(Path(scratch) / "lock")
            yield _store(Path(scratch) / "cache")
    except OSError as exc:
        yield failed("store", f"{there} cannot be written to: {exc.strerror or exc}", _WRITABLE)


def check_shared_directory(path: Path) -> Iterator[Check]:
    """Check the permissions and the free space of a directory that hosts share.

    `check_bucket` checks everything else.
    """
    there, directory = _directory(path, read_only=False)
    yield directory
    if there is not None:
        yield _space(there, wanted=-1, held=0)


def check_tier(directory: Path | None, *, max_size: int) -> Iterator[Check]:
    """Check whether this host can keep copies of the entries of a shared cache.

    Args:
        directory: of the copies; None if this host has no local disk.
        max_size: bytes of copies; 0 for no copies, -1 for no limit.
    """
    name = "local tier"
    if max_size == 0:
        yield fine(name, "switched off: every process downloads every entry it needs")
        return
    advice = "set EJCACHE_LOCAL_DIR to a directory on a local disk that can be written to"
    if directory is None:
        yield warning(name, "there is no local disk for copies, so every process downloads every entry", advice)
        return
    there, check = _directory(directory, read_only=False)
    if there is None:
        yield warning(name, check.detail, advice)
        return
    space = _space(there, wanted=max_size, held=_held(directory))
    pending = sum(1 for marker in (directory / "scratch" / "spool").glob("*/*") if marker.parent.name != "present")
    waiting = f", {pending} uploads pending" if pending else ""
    yield Check(name, space.verdict, f"{directory}: {space.detail}{waiting}", space.advice)


_WRITABLE: Final = "make the directory this user's own (chown, chmod u+rwx), or set EJCACHE_READ_ONLY=1 to read only"


def _directory(path: Path, *, read_only: bool) -> tuple[Path | None, Check]:
    """The directory, or the one in which it would be created; None if it cannot be used."""
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
        return None, failed(name, f"{path} does not exist, and {there} cannot be written to", _WRITABLE)
    if not os.access(path, os.R_OK | os.X_OK):
        return None, failed(name, f"{path} cannot be read by this user (mode {mode:04o})", _WRITABLE)
    if not read_only and not writable:
        return path, warning(name, f"{path} can be read, not written, by this user (mode {mode:04o})", _WRITABLE)
    if mode & stat.S_IWOTH:
        advice = "chmod o-w: entries are code, and everybody who can write there can make other users run it"
        return path, warning(name, f"{path} can be written to by everybody (mode {mode:04o})", advice)
    where = "on a network, as other hosts may see it" if detect_network_filesystem(path) else "on a disk of this host"
    return path, fine(name, f"{path} (mode {mode:04o}, {detect_filesystem(path)[0] or 'a file system'} {where})")


def _trust(access: Access) -> Check:
    """What programs do with the directory, by the decision that they make themselves."""
    if access.why:
        return warning("trust", f"{access.why}; programs use a directory of their own instead", access.mend)
    if access.others:
        return fine("trust", "everybody who can write there is trusted, and programs load code from it")
    return fine("trust", "only this user and root could put code there")


def _space(there: Path, *, wanted: int, held: int) -> Check:
    name = "free space"
    try:
        free = shutil.disk_usage(there).free
    except OSError as exc:
        return skipped(name, f"not known: {exc.strerror or exc}")
    detail, grows = f"{format_size(free)} free", wanted - held if wanted > 0 else 0
    if free < grows:
        advice = "lower the limit or free space: an entry that does not fit is counted as an error, and not stored"
        return warning(name, f"{detail}, and the cache may grow by {format_size(grows)}", advice)
    return fine(name, detail) if free >= _LITTLE else warning(name, detail, "free space on the disk")


def _held(path: Path) -> int:
    if not os.path.isdir(path / "v1" / "local"):  # noqa: PTH112
        return 0
    try:
        with LocalStore(path, read_only=True) as store:
            return store.size()
    except StoreError:
        return 0


def _structures(path: Path, *, trusted: bool) -> Iterator[Check]:
    name = "structures"
    try:
        with LocalStore(path, read_only=True, trusted=trusted) as store:
            problems = store.check()
            entries = list(store.entries())
    except StoreError as exc:
        yield failed(name, exc, "run `ejcache verify --fix`")
        return
    if problems:
        yield warning(name, "; ".join(problems[:3]), "run `ejcache verify --fix`")
    else:
        count = sum(not is_side_key(info.key) for info in entries)
        yield fine(name, f"{count} entries, and the index is intact")
    yield _clock(max((info.last_used for info in entries), default=0.0))


def _clock(last_used: float) -> Check:
    """A directory of this host has no other clock to compare with, but what was written there has times."""
    ahead = last_used - time.time()
    if ahead <= _AHEAD:
        return fine("clock", "no entry is from the future")
    detail = f"an entry was used {format_age(ahead)} from now: the clock was ahead then, or is behind now"
    return warning("clock", detail, _SET_CLOCK)


def _locks(place: Path) -> Check:
    soon = time.monotonic()
    try:
        with exclusive(place, deadline=soon), exclusive(place, deadline=soon):
            return failed("locks", "two processes can hold one lock at once", "use a local disk")
    except StoreBusyError:
        return fine("locks", "a second lock is refused")
    except OSError as exc:
        return failed("locks", f"files cannot be locked here: {exc.strerror or exc}", "use a local disk")


def _store(place: Path) -> Check:
    name = "store"
    started = time.perf_counter()
    try:
        with LocalStore(place) as store:
            works = store.put("doctor", _ENTRY) and store.get("doctor") == _ENTRY
            works = works and store.delete("doctor") and not store.contains("doctor")
    except StoreError as exc:
        return failed(name, exc, "free space, or use another directory")
    if not works:
        return failed(name, "a stored entry could not be read again", "use another disk")
    text = f"created, written, read and deleted in {_text(started)}"
    return (
        fine(name, text) if time.perf_counter() - started < _SLOW_SECONDS else warning(name, text, "use a faster disk")
    )


_MAX_BYTES: Final = 1 << 20

_NEW_KEY: Final = "download the key file again, or name another file there"
_LOG_IN: Final = (
    "log in again or renew the credentials: `gcloud auth application-default login` or a key file in "
    "EASYDEL_GCS_CLIENT, `aws sso login` or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
)
_CREDENTIALS: Final = (
    (
        r"credentials file.*does not exist|No such file|was not found",
        "create the file, or correct the variable that names it",
    ),
    (
        r"Expecting value|not valid json|is not JSON|not hold credentials|refresh_token|PEM|private key|deserialize",
        _NEW_KEY,
    ),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    (r"profile.*(not be found|not found)|config profile", "correct AWS_PROFILE, or add the profile to ~/.aws/config"),
    (
        r"expired|invalid_grant|cannot be renewed|\b401\b|refuses the credentials|credentials were not found",
        _LOG_IN,
    ),
)
_CAUSES: Final = (
    (r"PermanentRedirect|\b301\b|region", "set AWS_DEFAULT_REGION to the region of the bucket"),
    (r"no bucket|NoSuchBucket", "correct the bucket's name, create the bucket, or allow these credentials to see it"),
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a bucket is opened with.

    Attributes:
        description: for a person.
        file: path of their file; empty if they come from elsewhere.
        source: the variable or setting that names the file.
    """

    description: str
    file: str = ""
    source: str = ""


def check_credentials_file(credentials: Credentials) -> Check | None:
    """A failed check if the file of Google credentials cannot be used; None if there is no file or it looks right."""
    if not credentials.file:
        return None
    what, advice = f"{credentials.file} ({credentials.source})", _NEW_KEY
    try:
        fields = json.loads(read_regular(credentials.file, max_size=_MAX_BYTES))
        if isinstance(fields, dict) and isinstance(fields.get("type"), str):
            return None
        problem = 'has no field "type", so it is not a credentials file'
    except OSError as exc:
        problem = f"cannot be read: {exc.strerror or exc}"
        advice = f"create the file, make it readable, or correct {credentials.source}"
    except (ValueError, RecursionError):
        problem = "is not JSON"
    return failed("credentials", f"{what} {problem}", advice)


def _advice(causes: Iterable[tuple[str, str]], problem: object) -> str:
    """What to do about an error of the storage that has one of these causes; empty if it has none."""
    return next((advice for cause, advice in causes if re.search(cause, str(problem), re.IGNORECASE)), "")


def remedy(problem: object, *, otherwise: str) -> str:
    """What to do about an error of the storage; `otherwise` for one whose cause is not known."""
    return _advice((*_CREDENTIALS, *_CAUSES), problem) or otherwise


_BUDGET: Final = 8.0
"""Seconds for all requests together."""
_ONE: Final = 4.0
"""Seconds for one operation, its retries included."""
_READS: Final = 5
_SLOW: Final = 0.25
_SKEW: Final = 30.0
_PROBE: Final = b"ejcache doctor: may be removed"

_CONDITIONS: Final = (
    "use storage (or an emulator, or a gateway) that honours conditional writes: otherwise several processes believe "
    "that they were first, and leases cannot be taken over"
)
_NAMES: Final = ("list", "create", "create once", "read", "compare and swap", "clock", "latency", "delete")

_ADVICE: Final = {
    "reach": "check the bucket's name, the network or mount, and the credentials: `gcloud auth application-default "
    "login` or EASYDEL_GCS_CLIENT=<file>, AWS_PROFILE or AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL",
    "list": "allow to list (storage.objects.list, s3:ListBucket): ls, stats, prune and eviction need it",
    "create": "allow to create (storage.objects.create, s3:PutObject), or set EJCACHE_READ_ONLY=1 to read only",
    "read": "allow to read (storage.objects.get, s3:GetObject)",
    "delete": "allow to delete (storage.objects.delete, s3:DeleteObject): eviction, leases and journals need it",
}
_PERMISSION: Final = {"create once": "create", "compare and swap": "create", "clock": "create", "latency": "reach"}
"""Which of these advices another check has."""


def check_bucket(
    bucket: Bucket,
    *,
    credentials: Credentials | None = None,
    read_only: bool = False,
) -> Iterator[Check]:
    """Try everything that a shared cache needs of `bucket`, one check after the other.

    Args:
        bucket: its retry policy is replaced by a less patient one, and its circuit breaker is removed, so that each
            check is tried whatever the one before found.
        credentials: what the bucket is opened with; None if there is nothing to say about them.
        read_only: only read, as a job does that does not write.
    """
    bucket.breaker = None
    problem = None if credentials is None else check_credentials_file(credentials)
    if problem is not None:
        yield problem
        yield from _all_skipped(("reach", *_NAMES), "the credentials cannot be used")
        return
    checkup = _Checkup(bucket)
    yield from checkup.run(credentials, read_only=read_only)


class _Checkup:
    """The steps return a sentence if all is well, in which `{took}` stands for their time, or else a `Check`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.end = time.monotonic() + _BUDGET
        self.name = f"v1/doctor/{process_name()}"
        self.problem: StoreError | None = None

    def run(self, credentials: Credentials | None, *, read_only: bool) -> Iterator[Check]:
        reach = self._try("reach", self._reach)
        if credentials is not None:
            yield self._judge(credentials)
        yield reach
        if reach.verdict is CheckVerdict.FAILED:
            yield from _all_skipped(_NAMES, "the storage cannot be reached")
            return
        yield self._try("list", self._list)
        if read_only:
            yield from _all_skipped(_NAMES[1:], "the cache is read-only")
            return
        create = self._try("create", self._create)
        yield create
        if create.verdict is not CheckVerdict.OK:
            yield from _all_skipped(_NAMES[2:], "no object could be created to try it on")
            return
        try:
            yield self._try("create once", self._create_once)
            yield self._try("read", self._read)
            yield self._try("compare and swap", self._swap)
            yield self._try("clock", self._clock)
            yield self._try("latency", self._latency)
        finally:
            deleted = self._try("delete", self._delete)
        yield deleted

    def _try(self, name: str, step: Callable[[], str | Check]) -> Check:
        self._limit_time()
        self.problem = None
        started = time.perf_counter()
        try:
            result = step()
        except StoreError as exc:
            self.problem = exc
            advice = remedy(exc, otherwise=_ADVICE[_PERMISSION.get(name, name)])
            if name == "create" and isinstance(exc, StoreReadOnlyError):
                return warning(name, f"only reading works, and jobs here store nothing: {exc}", advice)
            return failed(name, exc, advice + (f"; {self.bucket.url}/{self.name} stays" if name == "delete" else ""))
        return result if isinstance(result, Check) else fine(name, result.format(took=_text(started)))

    def _limit_time(self) -> None:
        self.bucket.policy = RetryPolicy(deadline=max(0.5, min(_ONE, self.end - time.monotonic())))

    def _judge(self, credentials: Credentials) -> Check:
        """Whether the credentials are good, by the first request that used them."""
        if self.problem is None:
            return fine("credentials", f"accepted: {credentials.description}")
        advice = _advice(_CREDENTIALS, self.problem)
        if advice:
            return failed("credentials", f"{credentials.description}: {self.problem}", advice)
        return skipped("credentials", f"{credentials.description}; not tried, because the storage was not reached")

    def _reach(self) -> str:
        # Not `stat`: the answer of S3 to that does not tell a missing object from a missing bucket.
        self.bucket.read(self.name, length=1)
        return "answered in {took}, connecting included"

    def _list(self) -> str:
        next(self.bucket.walk("v1/entries/"), None)
        return "a page in {took}"

    def _create(self) -> str | Check:
        if not self.bucket.create(self.name, _PROBE):
            what = "the storage answers that a new object exists already"
            return failed("create", what, "ask the operators of the storage")
        return "an object in {took}"

    def _create_once(self) -> str | Check:
        if not self.bucket.create(self.name, b"second"):
            return "a second creation is refused"
        detail = "an object that exists was created again: conditions are ignored"
        return failed("create once", detail, _CONDITIONS)

    def _read(self) -> str | Check:
        whole, part = self.bucket.read(self.name), self.bucket.read(self.name, length=7)
        if whole is None or part is None:
            return failed("read", "an object that was just written is not found", "use storage that shows its writes")
        if (whole.data, part.data) != (_PROBE, _PROBE[:7]):
            return failed("read", "other bytes come back than were written", "use other storage: this one damages them")
        return "what was written comes back, whole and in part"

    def _swap(self) -> str | Check:
        before = self.bucket.stat(self.name)
        version = "" if before is None else before.version
        first = self.bucket.write(self.name, _PROBE + b"!", version=version)
        if first is None or self.bucket.write(self.name, _PROBE, version=version) is not None:
            detail = "a conditional write succeeds although its condition does not hold, or fails although it holds"
            return failed("compare and swap", detail, _CONDITIONS)
        if not self.bucket.conditional:
            return "the writer compares the condition itself: at worst two hosts compile one program at once"
        return "a write whose condition does not hold is refused"

    def _clock(self) -> str | Check:
        began = time.time()
        there = self.bucket.now(f"{self.name}-clock")
        ended = time.time()
        if there is None:
            return skipped("clock", "the storage does not say when an object was made")
        # Some storages give whole seconds.
        skew = max(0.0, began - 1 - there, there - ended - 1)
        if skew > _SKEW:
            return warning("clock", f"the clocks of the storage and of this host differ by {skew:.0f} s", _SET_CLOCK)
        return "the clocks of the storage and of this host agree" if skew == 0 else f"{skew:.1f} s apart"

    def _latency(self) -> str | Check:
        taken: list[float] = []
        while len(taken) < _READS and (not taken or time.monotonic() < self.end):
            self._limit_time()
            started = time.perf_counter()
            self.bucket.read(self.name, length=len(_PROBE))
            taken.append(time.perf_counter() - started)
        middle = statistics.median(taken)
        text = f"{middle * 1000:.0f} ms to read a small object (worst of {len(taken)}: {max(taken) * 1000:.0f} ms)"
        return warning("latency", text, "use a bucket in the region where the job runs") if middle > _SLOW else text

    def _delete(self) -> str | Check:
        deleted = self.bucket.delete(self.name)
        if not deleted or self.bucket.stat(self.name) is not None:
            return failed("delete", "a deleted object is still there", "use storage that shows its deletions")
        return "in {took}"


def _text(started: float) -> str:
    seconds = time.perf_counter() - started
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
