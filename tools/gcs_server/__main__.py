"""`python tools/gcs_server --port 0 --print-url`: the server in the foreground until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
from pathlib import Path

if __package__ in (None, ""):
    # Started as a directory, whose own modules would be found under the wrong names.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gcs_server.server import GcsServer


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def _serve(server: GcsServer, *, print_url: bool) -> None:
    task = asyncio.create_task(server.serve())
    while not server.api.base:
        await asyncio.sleep(0.005)
        if task.done():
            break
    if print_url and not task.done():
        print(server.url, flush=True)
    await task


def main() -> int:
    parser = argparse.ArgumentParser(prog="gcs_server", description="A Google Cloud Storage server on loopback.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--print-url", action="store_true", help="print the endpoint's URL once it listens")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input ends")
    parser.add_argument("--bucket", action="append", default=[], help="a bucket that exists (default: bucket)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--jitter", type=float, default=0.0, help="seconds that the latency varies by")
    parser.add_argument("--write-interval", type=float, default=0.0, help="seconds between changes of one object")
    parser.add_argument("--page-size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-limit", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second that are served; others get 429")
    arguments = parser.parse_args()
    if arguments.watch_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    server = GcsServer(
        host=arguments.host,
        port=arguments.port,
        buckets=arguments.bucket or ("bucket",),
        latency=arguments.latency,
        jitter=arguments.jitter,
        write_interval=arguments.write_interval,
        page_size=arguments.page_size,
        seed=arguments.seed,
        log_limit=arguments.log_limit,
        rate=arguments.rate,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, print_url=arguments.print_url))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
