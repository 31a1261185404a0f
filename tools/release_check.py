"""Builds the wheel and the source distribution, checks them, and uses both in clean environments.

    python tools/release_check.py [--into dist] [--seconds 600] [PYTHON[:JAX] …]

Without interpreters: Python 3.11 with JAX 0.10.2, 3.12, 3.13 and 3.14, of which those that exist
are used, from PATH or pyenv. A version of JAX behind the colon is installed, and otherwise the newest that the wheel
allows; an interpreter for which JAX has no wheel is left out. Nothing is published.

Exit status: 0 if all is well, 1 if not, and 3 if what builds a package could not be installed, which says nothing of
this one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final

from interpreters import interpreter

ROOT: Final = Path(__file__).resolve().parent.parent
INTERPRETERS: Final = (("3.12", ""), ("3.11", "0.10.2"), ("3.13", ""), ("3.14", ""))
"""Versions of Python, and the JAX that each has here."""
NO_TOOLS: Final = 3
PROGRAM: Final = """\
import sys
import ejcache
assert not {"jax", "typer", "rich"} & set(sys.modules), "import ejcache imports too much"
import jax, jax.numpy as jnp
cache = ejcache.enable(min_compile_seconds=0)
jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((64, 64)))
print(jax.__version__, cache.stats().hits, cache.stats().misses)
"""


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints. It ends the check if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(directory: Path, python: str, *requirements: str) -> Path:
    """The directory of programs of a new environment that has these requirements."""
    run(python, "-m", "venv", directory)
    run(directory / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", *requirements)
    return directory / "bin"


def build(scratch: Path, into: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    try:
        programs = environment(scratch / "build", sys.executable, "build", "twine")
    except SystemExit as exc:
        print(exc)
        raise SystemExit(NO_TOOLS) from None
    run(programs / "python", "-m", "build", "-q", "--outdir", into, ROOT)
    (sdist,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    print(run(programs / "twine", "check", "--strict", sdist, wheel).strip())
    return sdist, wheel


def check_content(sdist: Path, wheel: Path) -> None:
    """The wheel has what is imported and nothing else; the source distribution can be tested."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    packed = {name for name in packed if ".dist-info/" not in name}
    source |= {f"ejcache/docs/{path.name}" for path in (ROOT / "docs").iterdir()}
    if packed != source:
        raise SystemExit(f"{wheel.name} and src differ: {sorted(packed ^ source)}")
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    missing = {"LICENSE", "CHANGELOG.md", "tests/conftest.py", "tools/cli_reference.py", "pyproject.toml"} - names
    if missing:
        raise SystemExit(f"{sdist.name} lacks {sorted(missing)}")
    print(f"{wheel.name}: {len(packed)} files, {wheel.stat().st_size:,} bytes; {sdist.name}: {len(names)} files")


def has_jax(scratch: Path, python: str, jax: str) -> bool:
    """True if the index has wheels of JAX for this interpreter."""
    wanted = f"jax=={jax}" if jax else "jax"
    command = [python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--target", "none"]
    command += ["--only-binary", ":all:", "--no-deps", wanted, "jaxlib"]
    return subprocess.run(command, cwd=scratch, capture_output=True, check=False).returncode == 0


def smoke(scratch: Path, wheel: Path, sdist: Path, python: str, jax: str) -> None:
    """Use the wheel, and then the source distribution, alone: a program's second process is a hit, commands answer."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    programs = environment(place / "environment", python, str(wheel), *([f"jax=={jax}"] if jax else []))
    pip: list[str | Path] = [programs / "python", "-m", "pip"]
    for kind, package in (("wheel", wheel), ("sdist", sdist)):
        if package is sdist:
            run(*pip, "uninstall", "-q", "-y", "ejcache")
            run(*pip, "install", "-q", "--no-deps", package)
        home = place / kind
        home.mkdir()
        outside = {"HOME": str(home), "EJCACHE": "", "JAX_PLATFORMS": "cpu", "XDG_STATE_HOME": str(home / "state")}
        outside |= {"JAX_COMPILATION_CACHE_DIR": str(home / "cache"), "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
        first, second = (run(programs / "python", "-c", PROGRAM, **outside).split() for _ in range(2))
        if int(first[1]) or not int(second[1]) or int(second[2]):
            raise SystemExit(f"{python}, {kind}: version, hits and misses are {first}, then {second}")
        run(programs / "ejcache", "ls", **outside)
        run(programs / "ejcache", "help", "index", **outside)
        run(*pip, "check")
        installed = run(*pip, "list", "--format", "freeze", "--exclude", "pip").splitlines()
        print(f"{python}, JAX {second[0]}, {kind}: {second[1]} hits then; {len(installed)} distributions", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreter", nargs="*", help="PYTHON or PYTHON:JAX")
    parser.add_argument("--into", type=Path, help="where the two files are kept")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin with no other interpreter after that")
    arguments = parser.parse_args()
    begun = time.monotonic()
    given = [text.partition(":")[::2] for text in arguments.interpreter]
    chosen = given or [(python, jax) for version, jax in INTERPRETERS if (python := interpreter(version))]
    with tempfile.TemporaryDirectory() as scratch:
        into = arguments.into or Path(scratch, "dist")
        sdist, wheel = build(Path(scratch), into)
        check_content(sdist, wheel)
        for python, jax in chosen:
            if time.monotonic() - begun > arguments.seconds:
                print(f"{python}: left out, because {arguments.seconds:.0f} s had passed")
            elif not has_jax(Path(scratch), python, jax):
                print(f"{python}: left out, because there is no JAX for it")
            else:
                smoke(Path(scratch), wheel, sdist, python, jax)


if __name__ == "__main__":
    main()
