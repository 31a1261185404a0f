"""Finds credentials for Google's storage as gcsfs does, without gcsfs, and says when gcsfs is needed all the same.

gcsfs takes most of a second of computing to import, more than all requests of a start. Where it does something that is
not done here, `is_left_to_gcsfs` says so: where fsspec's configuration has anything about `gcs` (who pays, among it),
with certificates of clients, in another universe than googleapis.com, and where gcsfs itself has kept credentials.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StorageCause, StoreUnavailableError
from ejcache.settings.environment import all_variables, environment_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
READ_WRITE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_FULL: Final = "https://www.googleapis.com/auth/devstorage.full_control"
"""What gcsfs asks for, but of workload identity."""
_TOKENS: Final = "https://oauth2.googleapis.com/token"
_FRESH: Final = dt.timedelta(minutes=10)
_PROTOCOLS: Final = ("gcs", "gs")
_CERTIFICATES: Final = (
    *("GOOGLE_API_USE_CLIENT_CERTIFICATE", "GOOGLE_API_CERTIFICATE_CONFIG"),
    *("CLOUDSDK_CONTEXT_AWARE_CERTIFICATE_CONFIG_FILE_PATH", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"),
)
"""Variables with which gcsfs shows a client's certificate, or talks to another server."""
_CERTIFICATE_FILES: Final = (
    "~/.config/gcloud/certificate_config.json",
    "/var/run/secrets/workload-spiffe-credentials",
)
_OF_GCSFS: Final = "~/.gcs_tokens"
"""Credentials that gcsfs got through a browser. It uses them where Google's libraries find none."""
_OF_GCLOUD: Final = "~/.config/gcloud/application_default_credentials.json"


class Token:
    """The token of some credentials, renewed in time. Safe for threads.

    Args:
        credentials: of google-auth; None for none.
    """

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = threading.RLock()

    @property
    def is_stale(self) -> bool:
        """True if the next request needs another token, for which google-auth asks a server."""
        return is_stale(self._credentials)

    def renew(self) -> None:
        """Get a token, unless another thread just did; raises google-auth's errors."""
        with self._lock:
            if self.is_stale:
                from google.auth.transport.requests import Request
                from requests import Session

                with Session() as session:
                    self._credentials.refresh(Request(session))

    def apply(self, headers: dict[str, str]) -> None:
        """Add the token to the headers of a request, and the project that pays."""
        if self._credentials is not None:
            self._credentials.apply(headers)


def is_stale(credentials: Any) -> bool:
    """True if the token of these credentials is not valid, or soon will not be; never without credentials."""
    if credentials is None:
        return False
    if not credentials.valid:
        return True
    expiry = credentials.expiry
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    return expiry is not None and expiry.replace(tzinfo=None) - now < _FRESH


def sign_in(renew: Callable[[], object]) -> None:
    """Get the first token while the client is made: the storage's own time has not begun then.

    If that fails, in whatever way, the first request tries it again and says why.
    """
    with contextlib.suppress(Exception):
        renew()


def is_left_to_gcsfs() -> bool:
    """True if what this user has configured is something that gcsfs does, and our own client does not."""
    variables = all_variables()
    if any(variables.get(name, "").lower() not in {"", "false"} for name in _CERTIFICATES):
        return True
    if any(name.upper().startswith(tuple(f"FSSPEC_{each.upper()}" for each in _PROTOCOLS)) for name in variables):
        return True
    if any(map(_is_there, _CERTIFICATE_FILES)):
        return True
    if _is_there(_OF_GCSFS) and not variables.get(CREDENTIALS) and not _is_there(_OF_GCLOUD):
        return True
    known = getattr(sys.modules.get("fsspec.config"), "conf", {})
    return any(each in known for each in _PROTOCOLS) or _is_in_a_file(variables)


def _is_there(path: str) -> bool:
    return os.path.exists(os.path.expanduser(path))  # noqa: PTH110, PTH111 (pathlib raises RuntimeError without a home)


def _is_in_a_file(variables: Mapping[str, str]) -> bool:
    """True if a file of fsspec's configuration may say something of Google's storage; its libraries would parse it."""
    place = Path(variables.get("FSSPEC_CONFIG_DIR") or os.path.expanduser("~/.config/fsspec"))  # noqa: PTH111
    try:
        files = [path for path in place.iterdir() if path.suffix in {".ini", ".json"}]
        return any(each.encode() in path.read_bytes() for path in files for each in _PROTOCOLS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def load_google_auth() -> None:
    """Import what finds and renews credentials."""
    import google.auth.transport.requests  # noqa: F401


def named_credentials(path: str | None) -> dict[str, Any] | None:
    """Return the content of the file of credentials at `path`; None without a path.

    Raises:
        StoreUnavailableError: it is not there, or holds no credentials, or the one that Google's own variable names,
            which is looked for without a path. The libraries that read it do not name the file.
    """
    if path is not None:
        return _read_file(path, "the credentials file")
    if named := environment_variable(CREDENTIALS):
        _read_file(named, f"the credentials file of {CREDENTIALS}")
    return None


def _read_file(path: str, what: str) -> dict[str, Any]:
    remedy = "correct its path, or create it with `gcloud auth application-default login`"
    try:
        found = json.loads(Path(os.path.expanduser(path)).read_bytes())  # noqa: PTH111 (pathlib raises RuntimeError)
    except FileNotFoundError as exc:
        error = StoreUnavailableError(f"{what}, {path}, does not exist: {remedy}")
        raise error.because(StorageCause.NO_KEY_FILE) from exc
    except OSError as exc:
        error = StoreUnavailableError(f"{what}, {path}, cannot be read: {exc.strerror}: {remedy}")
        raise error.because(StorageCause.NO_KEY_FILE) from exc
    except ValueError as exc:
        error = StoreUnavailableError(f"{what}, {path}, is not JSON: {remedy}")
        raise error.because(StorageCause.BAD_KEY_FILE) from exc
    if not isinstance(found, dict):
        error = StoreUnavailableError(f"{what}, {path}, does not hold credentials: {remedy}")
        raise error.because(StorageCause.BAD_KEY_FILE)
    return found


def default_credentials() -> Any:
    """Find credentials as Google's own libraries do; None if there are none, as for whoever reads a public bucket."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError
    from google.auth.transport.requests import Request
    from requests import Session

    try:
        with Session() as session:
            return google.auth.default(scopes=[_FULL], request=Request(session))[0]
    except DefaultCredentialsError:
        return None


def credentials_of(found: Mapping[str, Any]) -> Any:
    """Make the credentials of a file; raises KeyError or ValueError if it lacks something, or is of another kind."""
    kind = found.get("type", "authorized_user")
    if kind == "service_account":
        from google.oauth2 import service_account

        return service_account.Credentials.from_service_account_info(found, scopes=[_FULL])  # type: ignore[no-untyped-call]
    if kind == "external_account":
        from google.auth import identity_pool

        return identity_pool.Credentials.from_info(found, scopes=[READ_WRITE])  # type: ignore[no-untyped-call]
    if kind == "authorized_user":
        from google.oauth2 import credentials

        given = {name: found[name] for name in ("refresh_token", "client_secret", "client_id")}
        return credentials.Credentials(None, token_uri=_TOKENS, **given)  # type: ignore[no-untyped-call]
    raise ValueError(f"{kind!r} is no kind of credentials that is known")
