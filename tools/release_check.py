"""Builds the wheel and the source distribution, checks them, and uses the wheel in clean environments.

    python tools/release_check.py [--into dist] [PYTHON[:JAX] …]

Without interpreters: `python3.11:0.10.2 python3.12 python3.13`, of which those that exist are used. A version of JAX
behind the colon is installed, and otherwise the newest that the wheel allows. Nothing is published.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
INTERPRETERS: Final = ("python3.11:0.10.2", "python3.12", "python3.13")
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
    run(directory / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements)
    return directory / "bin"


def build(scratch: Path, into: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    programs = environment(scratch / "build", sys.executable, "build", "twine")
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


def smoke(scratch: Path, wheel: Path, python: str, jax: str) -> None:
    """Install the wheel alone; a program's second process is a hit; the command line shows it."""
    requirements = [str(wheel), *([f"jax=={jax}"] if jax else [])]
    place = Path(tempfile.mkdtemp(dir=scratch))
    programs = environment(place / "environment", python, *requirements)
    home = place / "home"
    home.mkdir()
    outside = {"HOME": str(home), "EJCACHE": "", "JAX_PLATFORMS": "cpu", "XDG_STATE_HOME": str(home / "state")}
    outside |= {"JAX_COMPILATION_CACHE_DIR": str(home / "cache"), "PYTHONPATH": ""}
    first, second = (run(programs / "python", "-c", PROGRAM, **outside).split() for _ in range(2))
    if int(first[1]) or not int(second[1]) or int(second[2]):
        raise SystemExit(f"{python}: version, hits and misses are {first}, then {second}")
    run(programs / "ejcache", "ls", **outside)
    run(programs / "ejcache", "--help", **outside)
    run(programs / "python", "-m", "pip", "check")
    installed = run(programs / "python", "-m", "pip", "list", "--format", "freeze", "--exclude", "pip").splitlines()
    print(f"{python}, JAX {second[0]}: {second[1]} hits in the second process; {len(installed)} distributions")


def is_usable(interpreter: str) -> bool:
    """Whether it runs: pyenv has shims for versions that are not selected, which only say so."""
    found = shutil.which(interpreter)
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreter", nargs="*", default=[i for i in INTERPRETERS if is_usable(i.partition(":")[0])])
    parser.add_argument("--into", type=Path, help="where the two files are kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        into = arguments.into or Path(scratch, "dist")
        sdist, wheel = build(Path(scratch), into)
        check_content(sdist, wheel)
        for interpreter in arguments.interpreter:
            python, _, jax = interpreter.partition(":")
            smoke(Path(scratch), wheel, python, jax)


if __name__ == "__main__":
    main()
