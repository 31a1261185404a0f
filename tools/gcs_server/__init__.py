"""A Google Cloud Storage server on loopback: the JSON API that gcsfs speaks, with its conditions, and with faults.

It is for tests, demonstrations and benchmarks. Everything is in memory, credentials are not checked, and nothing in it
depends on ejcache. In a test::

    with GcsServer(buckets=["bucket"]) as server:
        fs = gcsfs.core.GCSFileSystem(endpoint_url=server.url, token="anon", project="p")
        server.add_fault("status", status=503, method="GET", count=2)
        fs.cat_file("bucket/name")
        assert [r.status for r in server.requests] == [503, 503, 200]

`GcsServerProcess` is the same in a process of its own, and `python tools/gcs_server --port 0 --print-url` starts one by
hand. It follows Google's documentation; it was never compared with the real service. README.md says why the tests do
not use an emulator that somebody else wrote.
"""

from __future__ import annotations

from gcs_server.faults import ACTIONS, Fault
from gcs_server.process import GcsServerProcess
from gcs_server.server import GcsServer, RequestRecord

__all__ = ["ACTIONS", "Fault", "GcsServer", "GcsServerProcess", "RequestRecord"]
