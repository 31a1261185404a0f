"""Azure's storage on loopback: Microsoft's emulator Azurite, which is installed by npm when it is first needed.

It is kept among the system's temporary files, outside of the checkout, for all later runs of this user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dead_ends import leads_to

from ejcache.util.locks import exclusive

if TYPE_CHECKING:
    from ejcache.bucket.azure import AzureBucket

__all__ = ["AzureServer", "azure_bucket", "why_no_azure"]

VERSION = "3.35.0"
_INSTALL_SECONDS = 300.0
_NPM_OPTIONS = ("--no-audit", "--no-fund", "--fetch-retries", "0", "--fetch-timeout", "30000")
_FAILED_SECONDS = 600.0
"""After a failed installation, other workers do not try for so long: each attempt may take a minute."""
_LISTENS = "successfully listens on "
_RUN = "process.stdin.resume().on('end', () => process.exit()); require(process.argv[1])"
"""It ends with the process that has started it."""


@cache
def why_no_azure() -> str:
    """Why no emulator can be started here, or nothing; installs it if need be."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            return f"{command} is not installed, and Azurite needs it"
    try:
        import adlfs  # noqa: F401
    except ImportError:
        return "adlfs is not installed"
    return "" if _main().exists() else _install()


def _home() -> Path:
    return Path(tempfile.gettempdir()) / f"ejcache-test-tools-{os.getuid()}" / f"azurite-{VERSION}"


def _main() -> Path:
    return _home() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _install() -> str:
    home = _home()
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    failed = home.with_name(f"{home.name}.failed")
    # Several workers of one run come here at the same time.
    with exclusive(home.with_name(f"{home.name}.lock"), deadline=time.monotonic() + _INSTALL_SECONDS):
        if _main().exists():
            return ""
        if failed.exists() and time.time() - failed.stat().st_mtime < _FAILED_SECONDS:
            return failed.read_text()
        with tempfile.TemporaryDirectory(dir=home.parent) as fresh:
            done = subprocess.run(
                ["npm", "install", *_NPM_OPTIONS, "--prefix", fresh, f"azurite@{VERSION}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=_INSTALL_SECONDS,
            )
            if done.returncode != 0:
                failed.write_text(f"npm cannot install azurite {VERSION}: {done.stderr.strip()[-300:]}")
                return failed.read_text()
            shutil.move(fresh, home)
            Path(fresh).mkdir()
    return ""


def azure_bucket(url: str, prefix: str = "prefix", *, deadline: float = 60.0) -> AzureBucket:
    """The container named "bucket" of the server at `url`."""
    from ejcache.bucket.azure import AzureBucket
    from ejcache.bucket.retry import RetryPolicy

    options = {"connection_string": leads_to("az", url)["AZURE_STORAGE_CONNECTION_STRING"]}
    return AzureBucket(f"az://bucket/{prefix}", options=options, policy=RetryPolicy(deadline))


class AzureServer:
    """Azurite in a process of its own, with one container named "bucket".

    Attributes:
        url: where it listens.
        variables: what leads programs to it.
    """

    def __enter__(self) -> Self:
        if why_no_azure():
            raise RuntimeError(why_no_azure())
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        self._process = subprocess.Popen(
            ["node", "-e", _RUN, _main(), *options, "--blobHost", "127.0.0.1", "--blobPort", "0"],
            cwd=_home(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in self._process.stdout:
            if _LISTENS in line:
                self.url = line.partition(_LISTENS)[2].strip()
                break
        else:
            self.__exit__()
            raise RuntimeError("Azurite ended before it listened")
        self.variables = leads_to("az", self.url)
        self._container().create_container()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def names(self, prefix: str = "") -> list[str]:
        """What is stored, by name."""
        return [blob.name for blob in self._container().list_blobs(name_starts_with=prefix)]

    def _container(self):
        from azure.storage.blob import ContainerClient

        return ContainerClient.from_connection_string(self.variables["AZURE_STORAGE_CONNECTION_STRING"], "bucket")
