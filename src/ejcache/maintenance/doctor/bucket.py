"""Whether a bucket, or a directory that hosts share, can hold a cache, and what an error of it means.

All checks together take at most ten seconds. Every check uses an object of its own, `v1/doctor/<process name>`, which
is deleted at the end.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.bucket.layout import process_name
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.maintenance.doctor.checks import Check, CheckVerdict, failed, fine, skipped, warning
from ejcache.util.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.bucket.base import Bucket

_MAX_BYTES: Final = 1 << 20

_NEW_KEY: Final = "download the key file again, or name another file there"
_LOG_IN: Final = {
    "gs": "log in again (`gcloud auth application-default login`), or name a valid key file in EASYDEL_GCS_CLIENT",
    "s3": "renew the credentials (`aws sso login`, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN)",
}
_CAUSES: Final[tuple[tuple[str, dict[str, str] | str], ...]] = (
    (
        r"credentials file.*does not exist|No such file|was not found",
        "create the file, or correct the variable that names it",
    ),
    (
        r"Expecting value|not valid json|is not JSON|not hold credentials|refresh_token|PEM|private key|deserialize",
        _NEW_KEY,
    ),
    (r"expired|ExpiredToken|invalid_grant|cannot be renewed|\b401\b|refuses the credentials", _LOG_IN),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    (r"profile.*(not be found|not found)|config profile", "correct AWS_PROFILE, or add the profile to ~/.aws/config"),
    (r"Unable to locate credentials|NoCredentials|default credentials|credentials were not found", _LOG_IN),
)
_OTHER_CAUSES: Final = (
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
    what = f"{credentials.file} ({credentials.source})"
    try:
        fields = json.loads(read_regular(credentials.file, max_size=_MAX_BYTES))
    except OSError as exc:
        problem = f"{what} cannot be read: {exc.strerror or exc}"
        return failed("credentials", problem, f"create the file, make it readable, or correct {credentials.source}")
    except (ValueError, RecursionError):
        return failed("credentials", f"{what} is not JSON", _NEW_KEY)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        return failed("credentials", f'{what} has no field "type", so it is not a credentials file', _NEW_KEY)
    return None


def remedy(problem: object, scheme: str, *, otherwise: str) -> tuple[str, bool]:
    """What to do about an error of the storage.

    Args:
        problem: the error.
        scheme: "gs", "s3" or another one.
        otherwise: the advice for any other error.

    Returns:
        The advice, and whether the credentials are the cause.
    """
    text = str(problem)
    for pattern, advice in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return (advice if isinstance(advice, str) else advice.get(scheme, otherwise)), True
    for pattern, advice in _OTHER_CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return advice, False
    return otherwise, False


_BUDGET: Final = 8.0
"""Seconds for all requests together."""
_ONE: Final = 4.0
"""Seconds for one operation, its retries included."""
_READS: Final = 5
_SLOW: Final = 0.25
_SKEW: Final = 30.0
_DOCTOR: Final = "v1/doctor/"
_PROBE: Final = b"ejcache doctor: may be removed"

_NAMES: Final = ("list", "create", "create once", "read", "compare and swap", "clock", "latency", "delete")

_ADVICE: Final = {
    "gs": {
        "reach": "check the bucket's name, the network, and the credentials: `gcloud auth application-default login`, "
        "or EASYDEL_GCS_CLIENT=<file>",
        "list": "allow storage.objects.list (roles/storage.objectUser): ls, stats, prune and eviction need it",
        "create": "allow storage.objects.create (roles/storage.objectUser), or set EJCACHE_READ_ONLY=1 to read only",
        "read": "allow storage.objects.get (roles/storage.objectUser)",
        "delete": "allow storage.objects.delete (roles/storage.objectUser): eviction, leases and journals need it",
    },
    "s3": {
        "reach": "check the bucket's name, the network (AWS_ENDPOINT_URL), and the credentials (AWS_PROFILE, "
        "AWS_ACCESS_KEY_ID)",
        "list": "allow s3:ListBucket on the bucket: ls, stats, prune and eviction need it",
        "create": "allow s3:PutObject, or set EJCACHE_READ_ONLY=1 to read only",
        "read": "allow s3:GetObject",
        "delete": "allow s3:DeleteObject: eviction, leases and journals need it",
    },
}
_OTHER_ADVICE: Final = {
    "reach": "check the path or address, the network or mount, and the credentials",
    "list": "allow the user to list: ls, stats, prune and eviction need it",
    "create": "allow the user to write, or set EJCACHE_READ_ONLY=1 to read only",
    "read": "allow the user to read what others of the job write (umask, access lists)",
    "delete": "allow the user to delete: eviction, leases and journals need it",
}


def check_bucket(
    bucket: Bucket,
    *,
    credentials: Credentials | None = None,
    read_only: bool = False,
    slow_seconds: float = _SLOW,
    operation_seconds: float = _ONE,
) -> Iterator[Check]:
    """Try everything that a shared cache needs of `bucket`, one check after the other.

    Args:
        bucket: its retry policy is replaced by a less patient one, and its circuit breaker is removed, so that each
            check is tried whatever the one before found.
        credentials: what the bucket is opened with; None if there is nothing to say about them.
        read_only: only read, as a job does that does not write.
        slow_seconds: from this time on, reading a small object counts as slow.
        operation_seconds: for one operation, its retries included.
    """
    bucket.breaker = None
    problem = None if credentials is None else check_credentials_file(credentials)
    if problem is not None:
        yield problem
        yield from (skipped(name, "the credentials cannot be used") for name in ("reach", *_NAMES))
        return
    checkup = _Checkup(bucket, time.monotonic() + _BUDGET, slow_seconds, operation_seconds)
    yield from checkup.run(credentials, read_only=read_only)


class _Checkup:
    """The steps return a sentence if all is well, in which `{took}` stands for their time, or else a `Check`."""

    def __init__(self, bucket: Bucket, end: float, slow: float, longest: float) -> None:
        self.bucket = bucket
        self.end = end
        self.slow = slow
        self.longest = longest
        self.name = _DOCTOR + process_name()
        self.scheme = bucket.url.partition("://")[0]
        self.advice = _ADVICE.get(self.scheme, _OTHER_ADVICE)
        self.problem: StoreError | None = None

    def run(self, credentials: Credentials | None, *, read_only: bool) -> Iterator[Check]:
        reach = self._try("reach", self._reach)
        if credentials is not None:
            yield self._judge(credentials)
        yield reach
        if reach.verdict is CheckVerdict.FAILED:
            yield from (skipped(name, "the storage cannot be reached") for name in _NAMES)
            return
        yield self._try("list", self._list)
        if read_only:
            yield from (skipped(name, "the cache is read-only") for name in _NAMES[1:])
            return
        create = self._try("create", self._create)
        yield create
        if create.verdict is not CheckVerdict.OK:
            yield from (skipped(name, "no object could be created to try it on") for name in _NAMES[2:])
            return
        try:
            yield self._try("create once", self._create_once, needs="create")
            yield self._try("read", self._read)
            yield self._try("compare and swap", self._swap, needs="create")
            yield self._try("clock", self._clock, needs="create")
            yield self._try("latency", self._latency, needs="reach")
        finally:
            deleted = self._try("delete", self._delete)
        yield deleted

    def _try(self, name: str, step: Callable[[], str | Check], *, needs: str = "") -> Check:
        self._limit_time()
        self.problem = None
        started = time.perf_counter()
        try:
            result = step()
        except StoreError as exc:
            self.problem = exc
            advice, _ = remedy(exc, self.scheme, otherwise=self.advice[needs or name])
            if name == "create" and isinstance(exc, StoreReadOnlyError):
                return warning(name, f"only reading works, and jobs here store nothing: {exc}", advice)
            stays = f"; {self.bucket.url}/{self.name} stays" if name == "delete" else ""
            return failed(name, exc, advice + stays)
        return result if isinstance(result, Check) else fine(name, result.format(took=_text(started)))

    def _limit_time(self) -> None:
        self.bucket.policy = RetryPolicy(deadline=max(0.5, min(self.longest, self.end - time.monotonic())))

    def _judge(self, credentials: Credentials) -> Check:
        """Whether the credentials are good, by the first request that used them."""
        if self.problem is None:
            return fine("credentials", f"accepted: {credentials.description}")
        advice, blamed = remedy(self.problem, self.scheme, otherwise="")
        if blamed:
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
        if self.bucket.create(self.name, b"second"):
            return failed(
                "create once",
                "an object that exists was created again: conditions are ignored",
                "use storage (or an emulator, or a gateway) that honours conditional writes: otherwise several "
                "processes believe that they were first",
            )
        return "a second creation is refused"

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
            return failed(
                "compare and swap",
                "a conditional write succeeds although its condition does not hold, or fails although it holds",
                "use storage that honours conditions: leases cannot be taken over safely here",
            )
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
            return warning(
                "clock",
                f"the clocks of the storage and of this host differ by {skew:.0f} s",
                "set this host's clock (NTP): ages depend on it, and credentials are refused beyond five minutes",
            )
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
        return warning("latency", text, "use a bucket in the region where the job runs") if middle > self.slow else text

    def _delete(self) -> str | Check:
        deleted = self.bucket.delete(self.name)
        if not deleted or self.bucket.stat(self.name) is not None:
            return failed("delete", "a deleted object is still there", "use storage that shows its deletions")
        return "in {took}"


def _text(started: float) -> str:
    seconds = time.perf_counter() - started
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
