"""Writes the pages of the site, from which MkDocs makes HTML (`make docs`).

    python tools/build_site.py [DIRECTORY]        build/docs by default; what is in it is replaced

The pages are those of docs/, those of the repository's root, and references that are made from the code. A line
`<!-- picture: NAME -->` or `<!-- plot: NAME -->` becomes a drawing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import site_pictures
import site_plots

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCES: Final = {
    "api.md": "api_reference.py",
    "cli.md": "cli_reference.py",
    "json.md": "json_reference.py",
    "settings.md": "settings_reference.py",
}
"""Pages that a tool prints. Each runs in a process of its own, because it runs commands."""
ROOT_PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/GPU.md": "gpu.md",
    "bench/RESULTS.md": "results.md",
    "tests/keys/key_pairs.md": "key_pairs.md",
}
DEPENDENCIES: Final = """\
# Dependencies

What `pip install ejcache` brings to an environment, with the hit or the command that needs each direct dependency. The
extras `s3` and `azure` add the clients of other storage.

"""
_LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", "": "dockerfile"}


def tool(name: str) -> str:
    """What a tool prints."""
    done = subprocess.run([sys.executable, ROOT / "tools" / name], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"tools/{name} failed: {done.stderr[-2000:]}")
    return done.stdout


def anchor(heading: str) -> str:
    """The anchor of a heading, as MkDocs and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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
    """Every page by its name; `printed` returns what a tool prints."""
    written = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    written |= {name: (ROOT / source).read_text(encoding="utf-8") for source, name in ROOT_PAGES.items()}
    found = {name: with_drawings(with_links_of_the_site(text)) for name, text in written.items()}
    found |= {name: printed(source) for name, source in REFERENCES.items()}
    return found | {"dependencies.md": DEPENDENCIES + printed("dependencies.py"), "examples.md": examples()}


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "docs" / "theme.css", directory)


if __name__ == "__main__":
    main()
