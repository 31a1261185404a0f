"""A bucket on loopback for the cases, the programs that use it, and what they ask of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from bench.contestants import JAX
from bench.context import ROOT, ChildError, child_environment

sys.path.append(str(ROOT / "tools"))

from gcs_server import GcsServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "GCSFS",
    "URL",
    "BucketServer",
    "GcsServerProcess",
    "Program",
    "bucket_variables",
    "kind_of",
    "peer_is_here",
    "run_together",
]

URL = "gs://bucket/cache"

GCSFS = {
    "FSSPEC_GCS_TOKEN": "anon",
    "FSSPEC_GS_TOKEN": "anon",
    "NO_GCE_CHECK": "true",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
"""What gcsfs has to know; without the last of them it asks the server for minutes what it is. With the first ones,
ejcache leaves its requests to gcsfs, too."""

_SIDE = {"module_text-": "text", "pgle_profile-": "profile", "run_profile-": "run profile"}
_KINDS = {"entries": "entry", "leases": "lease", "used": "journal", "counters": "counters", "policy.json": "policy"}


def peer_is_here() -> bool:
    """Whether JAX's own cache can use a bucket here: it needs etils."""
    return find_spec("etils") is not None


class BucketServer:
    """One server with an empty bucket; a context manager. The latency is that of every answer, in seconds."""

    def __init__(self, *, latency: float = 0.0) -> None:
        self.server = GcsServerProcess("--latency", str(latency))

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.stop()

    @property
    def variables(self) -> dict[str, str]:
        """What leads ejcache's programs to this server."""
        return bucket_variables(self.server.url)

    def variables_of(self, who: str) -> dict[str, str]:
        """What leads the programs of a contestant to this server: JAX's own cache asks it through gcsfs."""
        return self.variables | (GCSFS if who == JAX else {})

    def take_requests(self) -> Counter[str]:
        """What was asked since the last time, by kind."""
        requests = self.server.requests
        self.server.clear_requests()
        return Counter(kind_of(request.method, request.path, request.name) for request in requests)


def bucket_variables(url: str) -> dict[str, str]:
    return {"STORAGE_EMULATOR_HOST": url}


def kind_of(method: str, path: str, name: str) -> str:
    """Such as "GET entry", "POST lease" or "list"; JAX's have no kind but the method, for it has entries only."""
    if method == "GET" and path.endswith("/o"):
        return "list"
    if "/batch" in path:
        return "batch"
    _, separator, rest = name.partition("cache/v1/")
    if not separator:
        return method
    folder, _, key = rest.partition("/")
    kind = _KINDS.get(folder, folder)
    if kind == "entry":
        # What serves entries is stored as they are: `ejcache.keys.key.is_side_key`.
        last = key.rpartition("/")[2]
        kind = next((name for begin, name in _SIDE.items() if last.startswith(begin)), kind)
    return f"{method} {kind}"


class Program:
    """`python -m module *arguments` in a fresh process, with a home of its own; it says lines, and goes on when told.

    Attributes:
        seconds: from its start to its end, once it has ended.
    """

    def __init__(self, module: str, *arguments: object, home: Path, env: dict[str, str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / "stderr").open("w+")
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env=child_environment(home) | env,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.seconds = 0.0

    def says(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def expect(self, word: str) -> None:
        """Wait until it says that.

        Raises:
            ChildError: it says something else, or has ended.
        """
        said = self.says()
        if said != word:
            raise self._failed(f"said {said!r} in place of {word!r}")

    def go_on(self) -> None:
        """Give it the line that it waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self, *, timeout: float = 120.0) -> dict[str, Any]:
        """The JSON of its last line, once it has ended.

        Raises:
            ChildError: it failed, or did not end in `timeout` seconds.
        """
        try:
            printed, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as exc:
            self._process.kill()
            self._process.communicate()
            raise ChildError(f"a program did not end in {timeout:.0f} s") from exc
        self.seconds = time.perf_counter() - self._began
        if self._process.returncode != 0 or not printed.strip():
            raise self._failed(f"ended with {self._process.returncode}")
        self._errors.close()
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return answer

    def _failed(self, why: str) -> ChildError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return ChildError(f"a program {why}: {self._errors.read()[-2000:]}")


def run_together(programs: Iterable[Program]) -> list[dict[str, Any]]:
    """Let programs that are `ready` begin at one moment, and give their answers."""
    started = list(programs)
    for program in started:
        program.expect("ready")
    for program in started:
        program.go_on()
    return [program.answer() for program in started]
