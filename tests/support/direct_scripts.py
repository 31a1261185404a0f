"""Scripts as people write them, installed in four ways, each started from new directories: `direct_project/runs`.

python -m direct_scripts [--only SCRIPT…] [--ways WAY…]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from direct_traps.run import Server
from helpers import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["SCRIPTS", "WAYS", "run_scripts"]

PROJECT: Final = SUPPORT / "direct_project"
SCRIPTS: Final = {
    "linen_state": "flax", "nnx_tracker": "flax", "equinox_mlp": "equinox", "absl_config": "ml_collections",
    "trainer_class": "", "pydantic_config": "pydantic", "attrs_config": "attrs", "argparse_main": "", "rope_cache": "",
}  # fmt: skip
"""What each needs."""
WAYS: Final = ("path", "directory", "wheel", "find-links")
STARTS: Final = 3


def run_scripts(
    home: Path, *, scripts: Sequence[str] = tuple(SCRIPTS), ways: Sequence[str] = WAYS
) -> Iterator[dict[str, Any]]:
    """What direct mode made of each script in each way: the verdicts of its starts, and the sentences.

    `right` is whether each start had the first one's result. Scripts whose library is absent are left out.
    """
    here = [name for name in scripts if not SCRIPTS[name] or find_spec(SCRIPTS[name]) is not None]
    needed = {SCRIPTS[name] for name in here}
    modules = ("flax.linen", "flax.nnx", "equinox", "pydantic", "attrs")
    libraries = [name for name in modules if name.split(".")[0] in needed]
    servers = [Server(history, (), " ".join([*libraries, "optax"]), home) for history in ("plain", "other")]
    try:
        for way in ways:
            place = _install(home / way, way)
            for script in here:
                yield {
                    "script": script,
                    "way": way,
                    **_start_all(servers, home, place, script, installed=way != "path"),
                }
    finally:
        for server in servers:
            server.close()


def _install(home: Path, way: str) -> Path:
    """The directory with the package `runs`, as pip leaves it. Nothing is fetched."""
    shutil.copytree(PROJECT, home / "project")
    if way == "path":
        return home / "project"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    what = [str(home / "project")]
    if way != "directory":
        subprocess.run([*pip, "wheel", *offline, "-w", str(home / "dist"), *what], check=True)
        what = (
            [str(next((home / "dist").glob("*.whl")))]
            if way == "wheel"
            else ["--find-links", str(home / "dist"), "runs"]
        )
    subprocess.run([*pip, "install", *offline, "--target", str(home / "site-packages"), *what], check=True)
    return home / "site-packages"


def _start_all(servers: Sequence[Server], home: Path, place: Path, script: str, *, installed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=home) as directory:
        answers = []
        for number in range(STARTS):
            # A container has its files elsewhere, or at the same place, and they are as old as they were.
            source = Path(directory) / f"start{number}" / "venv" / "site-packages"
            shutil.copytree(place, source)
            work = Path(directory) / f"work{number}"
            work.mkdir()
            program = {"way": "script", "place": str(source), "name": script, "installed": installed, "cwd": str(work)}
            env = {"SLURM_JOB_ID": str(1000 + 37 * number), "EJCACHE_DIRECT": "1"}
            request = {
                "program": program,
                "env": env,
                "home": directory,
                "plain": False,
                "call": "LOSS",
                "arguments": [],
            }
            answers.append(servers[number % 2].start(request))
    failed = [answer["traceback"] for answer in answers if "failed" in answer]
    verdicts = [answer["verdicts"][0] if answer["verdicts"] else ["", "none", ""] for answer in answers]
    return {
        "verdicts": [verdict for _, verdict, _ in verdicts],
        "sentences": [sentence for _, _, sentence in verdicts],
        "right": not failed and all(answer["results"] == answers[0]["results"] for answer in answers),
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="direct_scripts", description=__doc__)
    parser.add_argument("--only", nargs="+", default=tuple(SCRIPTS), choices=SCRIPTS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    options = parser.parse_args()
    counted = {"hit": 0, "all": 0}
    with tempfile.TemporaryDirectory() as home:
        for each in run_scripts(Path(home), scripts=options.only, ways=options.ways):
            counted["all"] += 1
            counted["hit"] += each["verdicts"][-1] == "hit" and each["right"]
            print(json.dumps(each), flush=True)
    print(f"{counted['hit']} of {counted['all']} hit at the third start")


if __name__ == "__main__":
    main()
