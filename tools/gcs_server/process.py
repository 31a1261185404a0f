"""The server in a process of its own, with the same controls over HTTP."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.request import Request, urlopen

from gcs_server.server import RequestRecord

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["GcsServerProcess"]


class GcsServerProcess:
    """`python tools/gcs_server` as a context manager; the arguments are those of its command line.

    The process ends with this one, however this one ends, because it watches its standard input.
    """

    popen: ClassVar[type[subprocess.Popen[str]]] = subprocess.Popen
    """Starts the process."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> Self:
        program = str(Path(__file__).with_name("__main__.py"))
        command = [sys.executable, program, "--print-url", "--watch-stdin", *self._arguments]
        self._process = self.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the server did not start: exit status {self._process.wait()}")
        return self

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def requests(self) -> list[RequestRecord]:
        return [RequestRecord(**record) for record in self._get("/__log")]

    def clear_requests(self) -> None:
        self._get("/__log?clear=1")

    def add_fault(self, action: str, **rule: Any) -> None:
        self.control(faults=[{"action": action, **rule}])

    def clear_faults(self) -> None:
        self.control(clear_faults=True)

    def reset(self) -> None:
        self._post("/__reset", {})

    def control(self, **settings: Any) -> Any:
        """Change `latency`, `jitter`, `write_interval` or `page_size`, or add `faults`; what is in force now."""
        return self._post("/__ctl", settings)

    def _get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=120) as response:
            return json.load(response)

    def _post(self, path: str, value: Any) -> Any:
        with urlopen(Request(self.url + path, json.dumps(value).encode()), timeout=120) as response:
            return json.load(response)
