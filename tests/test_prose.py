"""What prose names exists, how docstrings begin, and that pages and messages have no word that only we understand."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from syntax import defined, dotted, nodes, parsed

import ejcache
import ejcache.autotune

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ejcache"


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the package, by their paths below it."""
    return {path.relative_to(PACKAGE).as_posix(): parsed(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


VERBS = """
Act Add Advise Agree Answer Append Ask Be Become Begin Bring Call Carry Change Check Choose Close Collect
Compare Compile Compute Convert Copy Correct Count Create Decide Decode Delete Describe Deserialise Digest
Discard Divide Do Draw Drop Enable Encode End Enter Escape Evict Fetch Find Fix Fold Forget Free Get Give Go Hand Have
Heed Hold Import Join Judge Keep Kill Label Learn Leave Let Limit Link List Load Log Look Lower Make Mark
Measure Merge Model Move Name Note Notice Notify Offer Open Order Overrule Parse Pass Pick Place Preload
Print Prove Publish Put Quarantine Raise Read Recall Record Reduce Refuse Release Remember Remove Renew
Replace Restore Return Run Save Say See Send Serve Set Settle Share Shorten Show Sleep Sort Spell Split
Stand Start Stop Store Strip Sum Take Tell Time Trace Translate Try Tune Turn Undo Upload Use Vary Wait Warn
Watch Weigh Write Yield
"""
"""What functions do, as their docstrings begin. A verb that is missing is added; "The", "A" and a name are no verbs."""


def test_docstrings_begin_with_a_verb():
    """The docstring of a function says what it does: of a predicate, when it is true. A property says what it is."""
    verbs = set(VERBS.split())
    found = [
        f"{path}:{node.lineno}: {node.name}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and not text.startswith("True if")
        and text.split()[0].rstrip(",:;.") not in verbs
        and not any("property" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "homes"),
    [
        (r"(?i)verdict", {"maintenance/doctor.py"}),
        (
            r"^_?prepare$",
            {
                "bucket/base.py",
                "bucket/client_bucket.py",
                "bucket/folder.py",
                "stores/base.py",
                "stores/shared/store.py",
            },
        ),
        (r"^_?Policy$", set()),
        (r"^_?Target$", set()),
    ],
)
def test_a_word_means_one_thing(pattern, homes):
    """A word of the table in CONTRIBUTING.md is in names of functions and classes only where it means what it says."""
    assert {path for path, tree in trees().items() for name in defined(tree) if re.search(pattern, name)} == homes


@cache
def docstrings() -> list[tuple[str, str]]:
    """Every docstring of the package with the path of its module, and two pages for those who change it."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (path, text)
        for path, tree in trees().items()
        for node in nodes(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    return [*found, *((name, (ROOT / name).read_text()) for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]


FOREIGN = frozenset(
    {
        "cache_key.py",
        "compiler.py",
        "core.py",
        "custom_partitioning.py",
        "ffi.py",
        "interpreters/mlir.py",
        "interpreters/pxla.py",
        "jax/experimental/topologies.py",
        "lax/linalg.py",
        "lru_cache.py",
        "mesh.py",
        "monitoring.py",
        "pjit.py",
        "random/prng.py",
        "source_info_util.py",
        "stages.py",
        "traceback_util.py",
        "tree_util.py",
        "xla_bridge.py",
        "xla_transform.py",
    }
)
"""Modules of JAX that prose names."""
OBJECTS = frozenset({"cache", "settings"})
"""Names of modules that prose also has for objects, and not for the modules."""


def test_modules_that_prose_names_exist():
    """The name or the end of a path of a module, in backquotes, is that of a file of this repository."""
    folders = ("src", "tests", "tools", "bench", "examples")
    files = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    missing = [
        f"{origin}: {name}"
        for origin, text in docstrings()
        for name in re.findall(r"`(?:\.\./)?([\w/]+\.py)`", text)
        if name not in FOREIGN and not any(f"/{path}".endswith(f"/{name}") for path in files)
    ]
    assert missing == []


def test_names_in_modules_that_prose_names_exist():
    """`module.name` in backquotes, where `module` is one of ours, is a name that this module has."""
    modules: dict[str, set[str]] = {}
    for path, tree in trees().items():
        stem = Path(path).parent.name if path.endswith("__init__.py") else Path(path).stem
        names = modules.setdefault(stem, set())
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.ImportFrom):
                names.update(alias.asname or alias.name for alias in node.names)
        for folder in Path(path).parents:
            modules.setdefault(folder.name, set()).update({stem} | names)
    missing = [
        f"{origin}: {module}.{name}"
        for origin, text in docstrings()
        for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_]\w*)(?:\(\))?`", text)
        if module in modules.keys() - OBJECTS and name not in modules[module] | {"py", "jsonl", "toml"}
    ]
    assert missing == []


def test_the_table_of_changes_names_files():
    """Each row of ARCHITECTURE's table "Where a change begins" names at least one file or folder, and all exist."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where a change begins")[2].partition("\n## ")[0]
    rows = [
        line.split("|")[2] for line in text.splitlines() if line.startswith("| ") and not line.startswith("| change")
    ]
    assert len(rows) >= 12
    for row in rows:
        paths = re.findall(r"`([\w./]+(?:\.py|/))`", row)
        assert paths, row
        for path in paths:
            assert "/" not in path or (PACKAGE / path).exists() or (ROOT / path).exists(), path


SAID_BESIDE = {
    "floors?": "minimum",
    "tiers?": "bucket|shared|disk",
    "leases?": "object|announce|waits?|expir|process",
    "seeds": "packages?|read-only|ships?",
    "quick": "compil",
    "generations?": "directory|index",
    "snapshots?": "journals",
    "unsure": "record|tuned|decision|measure",
}
"""Words of ours, and one of the words that says beside them, in the same paragraph, what they mean."""
UNSAID = re.compile(
    r"\b(keyed|net|is told|are told|whoever|as ever|host's log|this one|a word of ours|what it is about|goe?s? by"
    r"|by what|withdraws?|surroundings|what became of)\b",
    re.IGNORECASE,
)
"""What a reader who knows JAX alone stumbles over, whatever stands beside it."""


def strangers(text: str) -> list[str]:
    """The words of a text that a user of JAX does not know, where nothing beside them says what they mean."""
    text = re.sub(r"^ *```.*?^ *```$|^(?: {4}.*\n)+|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\|)", text):
        plain = " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", "", paragraph).split())
        found += [f"{word[0]}: {plain[:120]}" for word in UNSAID.finditer(plain)]
        found += [
            f"{word[0]}: {plain[:120]}"
            for pattern, meaning in SAID_BESIDE.items()
            if (word := re.search(rf"\b{pattern}\b", plain, re.IGNORECASE))
            and not re.search(rf"\b({meaning})", plain, re.IGNORECASE)
        ]
    return found


def test_strange_words_are_found():
    """A word alone is found, and one beside its meaning, in code or in a link is not."""
    assert strangers("It is below the floor.") == ["floor: It is below the floor."]
    assert strangers("The floor is the minimum compile time.") == []
    assert strangers("Whoever pushes is told.") == [
        "Whoever: Whoever pushes is told.",
        "is told: Whoever pushes is told.",
    ]
    assert strangers("Set `floor`, see [here](a.md#floor).\n\n```\nfloor\n```\n") == []


PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "glossary.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_strange_words(page):
    """So has the page of commands, which is their help, and the page of settings. The glossary says what words mean."""
    text = page.read_text()
    if page.name == "cli.md":
        text = text.replace("```", "")
    assert strangers(text) == []


def public_docstrings() -> dict[str, str]:
    """The docstrings of what ejcache offers, and of the public methods of its classes."""
    found: dict[str, Any] = {}
    for module in (ejcache, ejcache.autotune):
        for name in module.__all__:
            thing = getattr(module, name)
            found[f"{module.__name__}.{name}"] = thing
            if inspect.isclass(thing):
                found.update({f"{name}.{inner}": value for inner, value in vars(thing).items() if inner[0] != "_"})
    return {name: text for name, thing in found.items() if (text := inspect.getdoc(thing))}


def test_public_docstrings_have_no_strange_words():
    """Neither has a docstring of a name that is public."""
    found = {name: words for name, text in public_docstrings().items() if (words := strangers(text))}
    assert found == {}


def test_messages_have_no_strange_words():
    """What a process says to its user begins with "ejcache: "."""
    texts = [
        node.value
        for tree in trees().values()
        for node in nodes(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.lstrip().startswith("ejcache: ")
    ]
    assert len(texts) > 40
    assert [words for text in texts if (words := strangers(text.replace("%s", "it")))] == []


PRIVATE_ACCESSES = 24
"""How often tests may read or replace a private attribute of an object or module that is not theirs. Lower it."""


PUBLIC = frozenset({"_replace", "_asdict", "_fields", "_field_defaults", "_make", "_exit", "_getframe", "_repr_html_"})
"""Names that Python documents, of named tuples, `os` and `sys`, and one that IPython does."""


def private_accesses(source: str) -> list[str]:
    """The names `x._name` of something but `self` and `cls`, and those in texts that monkeypatch takes."""
    found = []
    if not re.search(r"\._[a-z]|[\"']_[a-z]", source, re.IGNORECASE):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in {"self", "cls"}:
            found.append(node.attr)
        elif isinstance(node, ast.Call) and dotted(node.func) in {"monkeypatch.setattr", "monkeypatch.delattr"}:
            texts = [str(each.value) for each in node.args[:2] if isinstance(each, ast.Constant)]
            found += [part for text in texts for part in text.split(".")]
    return [name for name in found if re.match(r"_[^_]", name) and name not in PUBLIC]


def test_tests_know_few_private_names():
    """A test uses what a module offers: private names of others are counted, and never more than before."""
    counts = {
        path.relative_to(ROOT).as_posix(): len(private_accesses(path.read_text()))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    total = sum(counts.values())
    most = sorted(counts.items(), key=lambda item: -item[1])[:10]
    assert total <= PRIVATE_ACCESSES, f"{total} accesses; most in {most}"
