"""Puts faults back into the code, one at a time, and says which of them the tests see.

    python tools/faults.py                        list the faults of tests/faults/index.toml
    python tools/faults.py all                    try each of them, with the tests that its row names
    python tools/faults.py 07 19                  try these two
    python tools/faults.py all --coverage FILE    with the tests that run its lines, by a .coverage file with contexts
    python tools/faults.py 07 --whole             with the whole suite, but for the long tests
    python tools/faults.py 07 --tests PATH …      with these tests
    python tools/faults.py all --at COMMIT        in the tree of this commit, with its tests

A fault is a patch. It is applied in a scratch copy of the tree, which has an environment of its own, so that programs
that tests start have the fault, too. The tests stop at the first failure. A test that also fails without the fault
does not count, and is left out. The result is one of

    seen     a test fails, and passes without the fault
    unseen   no test fails
    gone     the patch does not apply: its code has changed, so the fault has to be written or drawn anew
    unclear  the tests did not end, or ended without the name of a test

The exit status is 0 if all are seen.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
FAULTS: Final = ROOT / "tests" / "faults"
_SECONDS: Final = 3600.0
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@ -(\d+)(?:,(\d+))? ", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One row of the index.

    Attributes:
        name: its number and a few words; the patch is `<name>.patch`.
        room: of which part of the package it is.
        wrong: what is wrong with the fault in place.
        tests: files or directories of tests that run its lines.
    """

    name: str
    room: str
    wrong: str
    tests: tuple[str, ...]

    @property
    def patch(self) -> Path:
        """The file with the change that makes the fault."""
        return FAULTS / f"{self.name}.patch"


@dataclass(frozen=True)
class Result:
    """What came of one fault, the test that saw it or what pytest said, and the tests that do not count."""

    verdict: str
    detail: str = ""
    left_out: tuple[str, ...] = ()


def read_index() -> list[Fault]:
    """Read the faults in their order."""
    with (FAULTS / "index.toml").open("rb") as file:
        rows = tomllib.load(file)["fault"]
    return [Fault(row["name"], row["room"], row["wrong"], tuple(row["tests"])) for row in rows]


class Scratch:
    """A copy of the tree, with the files that git knows, in which a fault can be put and taken out again.

    Args:
        directory: an empty directory.
        commit: whose tree is copied; without it, the present one.
    """

    def __init__(self, directory: Path, *, commit: str | None = None) -> None:
        self.tree = directory / "tree"
        self._environment = directory / "environment"
        self.tree.mkdir()
        if commit:
            packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x"], cwd=self.tree, check=True, input=packed)
        else:
            self._copy()
        self._make_environment()

    def _copy(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, copy = ROOT / name, self.tree / name
            if source.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)

    def _make_environment(self) -> None:
        """Make an environment that has this one's libraries, and the package of the copy before them."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self._environment], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = self._environment / "lib" / version / "site-packages"
        libraries = Path(sys.prefix) / "lib" / version / "site-packages"
        (own / "faults.pth").write_text(f"{self.tree / 'src'}\nimport site; site.addsitedir({str(libraries)!r})\n")
        for name in ("ejcache", "mypy", "ruff"):
            command = Path(sys.prefix, "bin", name)
            if command.is_file():
                text = command.read_bytes().replace(sys.prefix.encode(), str(self._environment).encode(), 1)
                copy = self._environment / "bin" / name
                copy.write_bytes(text if text.startswith(b"#!") else command.read_bytes())
                copy.chmod(0o755)

    def apply(self, patch: Path, *, reverse: bool = False) -> bool:
        """Put the fault in, or take it out; False if the patch does not apply."""
        command = ["git", "apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), str(patch)]
        return subprocess.run(command, cwd=self.tree, capture_output=True, check=False).returncode == 0

    def first_failure(self, tests: Sequence[str], left_out: Sequence[str]) -> str | None:
        """Run these tests until one fails; return its name, or None."""
        command = [str(self._environment / "bin" / "python"), "-m", "pytest", "-x", "-q", "-n", "0"]
        command += ["-m", "not soak", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--timeout", "300"]
        command += [f"--deselect={name}" for name in left_out]
        try:
            ran = subprocess.run(
                [*command, *tests], cwd=self.tree, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{tests[0]} did not end"
        if ran.returncode in (0, 5):  # 5: every test was left out
            return None
        failed = _FAILED.search(ran.stdout)
        return failed[1] if failed else f"pytest exited with {ran.returncode}: {(ran.stdout + ran.stderr)[-300:]}"


def try_fault(fault: Fault, scratch: Scratch, tests: Sequence[str]) -> Result:
    """Put a fault in, run the tests, and take it out again."""
    present = [name for name in tests if (scratch.tree / name.split("::")[0]).exists()]
    if not scratch.apply(fault.patch):
        return Result("gone")
    if not present:
        scratch.apply(fault.patch, reverse=True)
        return Result("unseen", "none of the tests of its row is there any more")
    left_out: list[str] = []
    while True:
        failure = scratch.first_failure(present, left_out)
        scratch.apply(fault.patch, reverse=True)
        if failure is None:
            return Result("unseen", left_out=tuple(left_out))
        if not failure.split("::")[0].endswith(".py"):
            return Result("unclear", failure, tuple(left_out))
        if scratch.first_failure([failure], ()) is None:
            return Result("seen", failure, tuple(left_out))
        left_out.append(failure)
        scratch.apply(fault.patch)


def tests_by_coverage(fault: Fault, path: Path) -> list[str]:
    """Return the files of tests that run a line of the fault, by a file of coverage.py with contexts.

    What runs only in processes that tests start has no context: then the tests are those of the row.
    """
    from coverage import CoverageData

    data = CoverageData(str(path))
    data.read()
    text = fault.patch.read_text()
    name = next(line.removeprefix("+++ b/") for line in text.splitlines() if line.startswith("+++ "))
    measured = next((each for each in data.measured_files() if each.endswith(f"/{name}")), None)
    if measured is None:
        return list(fault.tests)
    lines = {
        number
        for start, length in _HUNK.findall(text)
        for number in range(int(start) + 3, int(start) + int(length or 1) - 3)
    }
    contexts = data.contexts_by_lineno(measured)
    found = {context.split("|")[0].split("::")[0] for line in lines for context in contexts.get(line, ()) if context}
    return sorted(found) or list(fault.tests)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="FAULT", help="the beginning of a name, or all")
    parser.add_argument("--coverage", type=Path, help="a .coverage file that was written with contexts")
    parser.add_argument("--whole", action="store_true", help="run all tests but the long ones")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="files and directories of tests")
    parser.add_argument("--at", metavar="COMMIT", help="whose tree and tests are tried")
    options = parser.parse_args()
    faults = read_index()
    if not options.names:
        for fault in faults:
            print(f"{fault.name}  [{fault.room}] {fault.wrong}")
        return 0
    chosen = [fault for fault in faults if "all" in options.names or fault.name.startswith(tuple(options.names))]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        scratch = Scratch(Path(directory), commit=options.at)
        for fault in chosen:
            tests = options.tests or list(fault.tests)
            if options.whole:
                tests = ["tests"]
            elif options.coverage:
                tests = tests_by_coverage(fault, options.coverage)
            begun = time.monotonic()
            result = try_fault(fault, scratch, tests)
            verdicts.append(result.verdict)
            left_out = f"; failed without it, too: {', '.join(result.left_out)}" if result.left_out else ""
            seconds = time.monotonic() - begun
            print(f"{fault.name}: {result.verdict} {result.detail}{left_out} ({seconds:.0f} s)", flush=True)
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("seen", "unseen", "gone", "unclear")))
    return 0 if set(verdicts) <= {"seen"} else 1


if __name__ == "__main__":
    sys.exit(main())
