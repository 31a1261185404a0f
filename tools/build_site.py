"""Writes the pages of the site, from which MkDocs makes HTML (`make docs`).

    python tools/build_site.py [DIRECTORY]        build/docs by default; what is in it is replaced

The pages are those of docs/, those of the repository's root, what commands print on a terminal and as JSON, and the
public names, whose docstrings mkdocstrings puts in. A line `<!-- picture: NAME -->` or `<!-- plot: NAME -->` becomes a
drawing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import site_pictures
import site_plots

import ejcache.autotune
import ejcache.errors
from ejcache.events import Event
from ejcache.history.causes import Cause
from ejcache.jax_integration.warm_start import WarmedProgram
from ejcache.maintenance.audit import Audit
from ejcache.maintenance.eviction import EvictionReport

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = """\
# Python

`import ejcache` imports neither JAX nor a storage backend; each name is imported when it is first used. The public
names are these, those of `ejcache.autotune` below, the [exceptions](errors.md), and the events of `ejcache.events`.
Everything else may change in any release.

A function may be called from any thread, and while other processes use the same cache.
"""
ROOT_PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/GPU.md": "gpu.md",
    "bench/RESULTS.md": "results.md",
    "tests/keys/key_pairs.md": "key_pairs.md",
}
RESULTS: Final = (EvictionReport, Audit, Cause, WarmedProgram)
"""What public functions return and no public name is."""
DEPENDENCIES: Final = """\
# Dependencies

What `pip install ejcache` brings to an environment, with the hit or the command that needs each direct dependency. The
extras `s3` and `azure` add the clients of other storage.

"""
_LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", "": "dockerfile"}


def tool(name: str) -> str:
    """What a tool prints; it runs in a process of its own, because it runs commands."""
    done = subprocess.run([sys.executable, ROOT / "tools" / name], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"tools/{name} failed: {done.stderr[-2000:]}")
    return done.stdout


def anchor(heading: str) -> str:
    """The anchor of a heading, as MkDocs and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def names() -> str:
    """The page of the public names: mkdocstrings replaces each line that begins with colons."""
    errors = {*ejcache.errors.__all__, "ConfigurationError", "ConfigurationMissingError"}
    of_cache = [name for name in ejcache.__all__ if name not in errors]
    of_tuning = [name for name in ejcache.autotune.__all__ if name not in {*errors, *ejcache.__all__, "ejkernel"}]
    listed = {
        "ejcache": of_cache,
        "ejcache.autotune": of_tuning,
        "ejcache.events": [kind.__name__ for kind in get_args(Event)],
    }
    parts = [
        f"## {module}\n\n" + "\n".join(f"::: {module}.{name}" for name in found) for module, found in listed.items()
    ]
    results = "## What functions return\n\n" + "\n".join(f"::: {each.__module__}.{each.__name__}" for each in RESULTS)
    return "\n".join([NAMES, *(part + "\n" for part in (*parts, results))])


def examples() -> str:
    """The page with every example as it is."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    parts = [re.sub(r"\]\(([^)#]+)\)", lambda found: f"](#{anchor(found[1])})", page)]
    for path in sorted((ROOT / "examples").rglob("*")):
        name = str(path.relative_to(ROOT / "examples"))
        if path.is_file() and name != "README.md" and "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8")
            parts.append(f"## {name}\n\n````{_LANGUAGES[path.suffix]}\n{text.rstrip()}\n````\n")
    return "\n".join(parts)


def with_links_of_the_site(text: str) -> str:
    """Links to files of the repository lead to their pages."""

    def target(found: re.Match[str]) -> str:
        name, _, heading = found[1].partition("#")
        name = name.removeprefix("../").removeprefix("docs/")
        if name.startswith("examples"):
            name, heading = "examples.md", anchor(name.removeprefix("examples").strip("/"))
        elif name == "bench/README.md":
            name = "results.md"
        name = ROOT_PAGES.get(name, name)
        return f"]({name}{'#' if heading else ''}{heading})"

    return re.sub(r"\]\((?!https?://|#)([^)]+)\)", target, text)


def with_drawings(text: str) -> str:
    """Pictures and plots in place of the lines that name them."""
    text = re.sub(
        r"^<!-- picture: (\S+) -->$", lambda found: site_pictures.PICTURES[found[1]](), text, flags=re.MULTILINE
    )
    return re.sub(r"^<!-- plot: (\S+) -->$", lambda found: site_plots.plot(found[1]), text, flags=re.MULTILINE)


def pages(printed: Callable[[str], str] = tool) -> dict[str, str]:
    """Every page by its name, and the report that one of them shows; `printed` returns what a tool prints."""
    written = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    written |= {name: (ROOT / source).read_text(encoding="utf-8") for source, name in ROOT_PAGES.items()}
    found = {name: with_drawings(with_links_of_the_site(text)) for name, text in written.items()}
    found |= {"json.md": printed("json_reference.py"), "api.md": names(), "examples.md": examples()}
    found |= json.loads(printed("site_terminal.py"))
    return found | {"dependencies.md": DEPENDENCIES + printed("dependencies.py")}


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "docs" / "theme.css", directory)


if __name__ == "__main__":
    main()
