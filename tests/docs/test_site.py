"""The site: its pages can be written, every name has a sentence there, links lead somewhere, and text can be read."""

from __future__ import annotations

import json
import re

import build_site
import dependencies
import json_reference
import pytest
import site_terminal
import write_references
import yaml
from cli_helpers import every_command
from helpers import ROOT

import ejcache
import ejcache.autotune
import ejcache.errors
import ejcache.events
from ejcache.settings.described import SETTINGS

MADE = set(write_references.PAGES)
"""Pages of docs/ that are made from the code."""
OF_THE_SITE = {"api.md", "dependencies.md", "json.md", "terminal.md"}
"""Pages that only the site has."""


@pytest.mark.one_python
@pytest.mark.one_jax
def test_pages_that_are_made_are_those_of_the_code():
    """`python tools/write_references.py` writes them."""
    old = [name for name, text in write_references.pages().items() if (ROOT / "docs" / name).read_text() != text]
    assert old == [], "run python tools/write_references.py"


NAME = re.compile(r"(?<![\w./@\"-])ejcache\.(\w+)(?:\.(\w+))?")


def test_pages_and_examples_name_what_is_public():
    """Each `ejcache.name` of README, docs and examples is in `__all__`, or in that of a module that is public."""
    modules = {"autotune": ejcache.autotune.__all__, "errors": ejcache.errors.__all__, "events": dir(ejcache.events)}
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.*")]
    texts = {path: path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"}
    found = {(path, *names) for path, text in texts.items() for names in NAME.findall(text)}
    assert len(found) > 50
    wrong = [
        (path.name, name, inner)
        for path, name, inner in found
        if (name not in ejcache.__all__ and name not in modules) or (inner and inner not in modules.get(name, [inner]))
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def pages():
    """The text of every page by its name.

    What commands print on a terminal is in test_readme.py, and what they print as JSON is in test_cli_json.py.
    """

    def printed(tool):
        if tool == "json_reference.py":
            return json_reference.HEAD
        if tool == "dependencies.py":
            return dependencies.table()
        if tool == "site_terminal.py":
            head = site_terminal.HEAD.format(program=site_terminal.program(), report=site_terminal.REPORT)
            return json.dumps({site_terminal.PAGE: head, site_terminal.REPORT: ""})
        raise AssertionError(f"nothing is known of {tool}")

    return build_site.pages(printed)


def section(page, heading):
    """What is below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def test_every_name_has_a_sentence(pages):
    """Settings, commands and public names are on their pages, each with a sentence."""
    for setting in SETTINGS:
        assert re.search(r"[A-Z][^.\n]{10,}\.", section(pages["settings.md"], f"`{setting.name}`")), setting.name
    for command in every_command():
        assert re.search(r"[A-Z][^.]{10,}\.", section(pages["cli.md"], f"ejcache {command}")), command
    for name in ejcache.errors.__all__:
        assert re.search(r"[A-Z][^.\n]{10,}\.", section(pages["errors.md"], f"`{name}`")), name
    listed = set(re.findall(r"^::: ([\w.]+)$", pages["api.md"], flags=re.MULTILINE))
    public = {f"ejcache.{name}" for name in {*ejcache.__all__} - {*ejcache.errors.__all__}}
    for name in public:
        assert name in listed, name
        assert getattr(ejcache, name.partition(".")[2]).__doc__, name
    for name in {*ejcache.autotune.__all__} - {*ejcache.__all__, "ejkernel"}:
        assert f"ejcache.autotune.{name}" in listed or f"`{name}`" in pages["errors.md"], name
    assert set(pages) >= MADE | OF_THE_SITE


def without_code(text):
    return re.sub(r"^(````?)\w*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_links_lead_somewhere(pages):
    """Every link within the site leads to a page, and to a heading of it if it names one."""
    slugs = {
        name: {
            re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE)
        }
        for name, text in pages.items()
    }
    wrong = []
    for name, text in pages.items():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            page, _, heading = target.partition("#")
            page = page or name
            if "://" not in target and (page not in pages or (heading and heading not in slugs[page])):
                wrong.append(f"{name}: {target}")
    assert wrong == []


def test_every_page_is_in_the_navigation(pages):
    """The navigation has each page once."""
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("nav:") :])["nav"]
    listed = [
        page for entry in nav for value in entry.values() for page in ([value] if isinstance(value, str) else value)
    ]
    names = [page if isinstance(page, str) else next(iter(page.values())) for page in listed]
    assert sorted(names) == sorted(page for page in pages if page.endswith(".md"))


def test_drawings_are_made(pages):
    """Every picture and plot is in its page, and says in words what it shows."""
    page = pages["index.md"]
    assert page.count("<svg ") == len(re.findall(r'role="img" aria-label="[^"]{20,}"', page)) == 8
    assert "<!--" not in page


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast():
    """Text has the contrast that WCAG AA asks for on every ground that it is written on, and bars 3 to the page."""
    css = (ROOT / "docs" / "theme.css").read_text()
    schemes = re.findall(r'\[data-md-color-scheme="(?:default|slate)"\] \{(.*?)\}', css, flags=re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", scheme))
        for ground in ("page", "plain", "good", "bad", "store"):
            assert contrast(colours["text"], colours[ground]) >= 4.5, (ground, colours)
        for ink in ("quiet", "link", "keyword", "literal", "string"):
            assert min(contrast(colours[ink], colours[ground]) for ground in ("page", "plain")) >= 4.5, ink
        for bar in ("ours", "theirs", "none", "line"):
            assert contrast(colours[bar], colours["page"]) >= 3, bar
