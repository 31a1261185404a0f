"""Which credentials a bucket is opened with, whether their file can be used, and what an error about them means."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.maintenance.doctor.checkup import failed
from ejcache.util.safe_files import read_regular

if TYPE_CHECKING:
    from ejcache.maintenance.doctor.checkup import Check

__all__ = ["Credentials", "check_credentials_file", "remedy"]

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
