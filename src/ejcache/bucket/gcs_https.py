"""Google Cloud Storage without gcsfs: what a start reads, and small objects, by plain HTTPS with google-auth's tokens.

gcsfs takes most of a second of computing to import, more than all requests of a start. Where it does something that is
not done here, this module says so (`open_google`), and gcsfs reads, too: where fsspec's configuration has anything
about `gcs` (who pays, among it), with certificates of clients, in another universe than googleapis.com, and where
google-auth finds no credentials, because gcsfs goes on looking for them.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache._version import __version__
from ejcache.bucket.https_client import HttpsClient, load_https
from ejcache.settings.environment import all_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

GOOGLE: Final = "https://storage.googleapis.com"
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


class GoogleHttps:
    """Requests to one server that has Google's protocol, with the credentials that were found.

    Args:
        location: of the server.
        credentials: of google-auth; None for none.
    """

    def __init__(self, location: str, credentials: Any) -> None:
        self.client = HttpsClient(location)
        self._credentials = credentials
        self._lock = threading.RLock()

    @property
    def is_stale(self) -> bool:
        """True if the next request needs another token, for which google-auth asks a server."""
        return self._credentials is not None and is_stale(self._credentials)

    def renew(self) -> None:
        """Get a token, unless another thread just did; raises google-auth's errors."""
        with self._lock:
            if self.is_stale:
                from google.auth.transport.requests import Request
                from requests import Session

                with Session() as session:
                    self._credentials.refresh(Request(session))

    def headers(self) -> dict[str, str]:
        """Return what a request says of this client: its name, the token, and the project that pays."""
        found = {"User-Agent": f"ejcache/{__version__}"}
        if self._credentials is not None:
            self._credentials.apply(found)
        return found


def is_stale(credentials: Any) -> bool:
    """True if the token of these credentials is not valid, or soon will not be."""
    if not credentials.valid:
        return True
    expiry = credentials.expiry
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    return expiry is not None and expiry.replace(tzinfo=None) - now < _FRESH


def is_left_to_gcsfs() -> bool:
    """True if what this user has configured is something that gcsfs does, and this module does not."""
    variables = all_variables()
    if any(variables.get(name, "").lower() not in {"", "false"} for name in _CERTIFICATES):
        return True
    if any(name.upper().startswith(tuple(f"FSSPEC_{each.upper()}" for each in _PROTOCOLS)) for name in variables):
        return True
    if any(os.path.exists(os.path.expanduser(path)) for path in _CERTIFICATE_FILES):  # noqa: PTH110, PTH111
        return True
    known = getattr(sys.modules.get("fsspec.config"), "conf", {})
    return any(each in known for each in _PROTOCOLS) or _is_in_a_file(variables)


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


def load_credentials() -> None:
    """Import what finds and renews credentials, and sends requests."""
    load_https()
    import google.auth.transport.requests  # noqa: F401


def open_google(location: str, *, token: object, found: Mapping[str, Any] | None) -> GoogleHttps | None:
    """Return what sends requests with the credentials that gcsfs would find; None if that is left to gcsfs.

    Args:
        location: of the server.
        token: what gcsfs would be given: "anon" for no credentials, or None to find them as Google's libraries do.
        found: the content of a file of credentials that was named.
    """
    if token == "anon":  # noqa: S105 (a word, not a secret)
        return GoogleHttps(location, None)
    credentials = _default() if found is None else _of_file(found)
    return None if credentials is None else GoogleHttps(location, credentials)


def _default() -> Any:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError
    from google.auth.transport.requests import Request
    from requests import Session

    try:
        with Session() as session:
            return google.auth.default(scopes=[_FULL], request=Request(session))[0]
    except DefaultCredentialsError:
        return None


def _of_file(found: Mapping[str, Any]) -> Any:
    """Make the credentials of a file as gcsfs makes them; None for another kind."""
    if found.get("type") == "service_account":
        from google.oauth2 import service_account

        return service_account.Credentials.from_service_account_info(found, scopes=[_FULL])  # type: ignore[no-untyped-call]
    if found.get("type") == "external_account":
        from google.auth import identity_pool

        return identity_pool.Credentials.from_info(found, scopes=[READ_WRITE])  # type: ignore[no-untyped-call]
    if found.get("type") == "authorized_user":
        from google.oauth2 import credentials

        given = {name: found[name] for name in ("refresh_token", "client_secret", "client_id")}
        return credentials.Credentials(None, token_uri=_TOKENS, **given)  # type: ignore[no-untyped-call]
    return None
