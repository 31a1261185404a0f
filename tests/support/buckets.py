"""Object stores on loopback for the tests: Google's protocol from tools/gcs_server, Amazon's from moto."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forking import ForkedWithClients, ForkedWithMoto
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import gcs_server
from gcs_server import GcsServer

from ejcache.bucket.retry import RetryPolicy
from ejcache.bucket.s3 import S3Bucket
from ejcache.stores.opening import kind_of_gcs

if TYPE_CHECKING:
    from ejcache.bucket.gcs import GcsBucket

__all__ = [
    "ENDPOINT",
    "GcsServer",
    "GcsServerProcess",
    "S3Server",
    "endpoint_at",
    "gcs_bucket",
    "prefix_of",
    "s3_bucket",
]

ENDPOINT = "endpoint"
DEADLINE = 60.0
"""Seconds: what is to succeed does so on a busy machine, too."""


def prefix_of(path: Path) -> str:
    """A short prefix that is the same for the same path, in this process and in others."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


def endpoint_at(path: Path) -> str:
    """The URL of the server that a fixture has written beside `path`: other processes find it there."""
    return (path.parent / ENDPOINT).read_text()


def gcs_bucket(
    server: GcsServer | str, prefix: str = "prefix", *, name: str = "bucket", deadline: float = DEADLINE, **more: Any
) -> GcsBucket:
    """A bucket of a server, with the client that this environment leads to."""
    url = server if isinstance(server, str) else server.url
    bucket = kind_of_gcs()(name, prefix, endpoint_url=url, policy=RetryPolicy(deadline), **more)
    bucket.make_seconds = deadline  # a busy machine makes its client slowly
    return bucket


class GcsServerProcess(gcs_server.GcsServerProcess):
    """That of the tool, whose process need not import the libraries of a server."""

    popen = ForkedWithClients


class S3Server:
    """moto's server in a process of its own, with one bucket named "bucket"."""

    def __enter__(self) -> Self:
        script = (
            "import os, sys, threading, boto3\n"
            "from moto.s3.responses import S3Response\n"
            "from moto.server import ThreadedMotoServer\n"
            # S3 decides a condition and carries the request out in one step. moto looks first and writes then, so that
            # two writers could both be told that they had created the object.
            "lock = threading.Lock()\n"
            "full = (507, {}, '<Error><Code>XMinioStorageFull</Code><Message>no room</Message></Error>')\n"
            "def atomically(method, grows):\n"
            "    def run(*arguments, **named):\n"
            "        with lock:\n"
            "            return full if grows and os.path.exists(sys.argv[1]) else method(*arguments, **named)\n"
            "    return run\n"
            "for name in ('put_object', 'delete_object'):\n"
            "    setattr(S3Response, name, atomically(getattr(S3Response, name), name == 'put_object'))\n"
            "server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)\n"
            "server.start()\n"
            "url = 'http://%s:%d' % server.get_host_and_port()\n"
            "boto3.client('s3', endpoint_url=url, aws_access_key_id='a', aws_secret_access_key='b',"
            " region_name='us-east-1').create_bucket(Bucket='bucket')\n"
            "print(url, flush=True)\n"
            "sys.stdin.read()\n"
        )
        self._directory = tempfile.TemporaryDirectory()
        self._full = Path(self._directory.name) / "full"
        self._process = ForkedWithMoto(
            [sys.executable, "-c", script, self._full],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.url = self._process.stdout.readline().decode().strip()
        return self

    def fill(self) -> None:
        """Take no object any more, as a server with S3's protocol does whose disks are full."""
        self._full.touch()

    def free(self) -> None:
        """Take objects again."""
        self._full.unlink()

    def __exit__(self, *exc: object) -> None:
        self._directory.cleanup()
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@functools.cache
def _session() -> Any:
    from aiobotocore.session import AioSession

    return AioSession()  # one for all, because each reads megabytes of service descriptions


def s3_bucket(url: str, prefix: str = "prefix", *, name: str = "bucket", deadline: float = DEADLINE) -> S3Bucket:
    """A bucket of moto's server, which has the one named "bucket"."""
    options = {"key": "a", "secret": "b", "client_kwargs": {"region_name": "us-east-1"}, "session": _session()}
    bucket = S3Bucket(name, prefix, options={**options, "endpoint_url": url}, policy=RetryPolicy(deadline))
    bucket.make_seconds = deadline  # a busy machine makes its client slowly
    return bucket
