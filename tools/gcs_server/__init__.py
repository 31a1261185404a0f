"""A Google Cloud Storage server on loopback: the JSON API that gcsfs speaks, with its conditions, and with faults.

It is for tests, demonstrations and benchmarks. Everything is in memory, nothing is checked about who asks, and it
knows nothing of the programs that use it. In a test::

    with GcsServer(buckets=["bucket"]) as server:
        fs = gcsfs.core.GCSFileSystem(endpoint_url=server.url, token="anon", project="p")
        server.add_fault("status", status=503, method="GET", count=2)
        fs.cat_file("bucket/name")
        assert [r.status for r in server.requests] == [503, 503, 200]

`GcsServerProcess` is the same in a process of its own, and `python tools/gcs_server --port 0 --print-url` the same
by hand. What it says about the service is what its documentation says; it was never compared with the real one.
"""

from __future__ import annotations

from gcs_server.faults import ACTIONS, Fault
from gcs_server.process import GcsServerProcess
from gcs_server.server import GcsServer, RequestRecord

__all__ = ["ACTIONS", "Fault", "GcsServer", "GcsServerProcess", "RequestRecord"]
