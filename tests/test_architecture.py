"""Imports point downwards, each third-party library has one seam, and only settings read the environment.

The checker reads the syntax tree, imports inside functions and under TYPE_CHECKING included: knowing a name is
knowing it, whenever it is looked up. The package's own `__init__` may name everything, lazily.
"""

from __future__ import annotations

import ast
import re
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from helpers import ROOT
from syntax import dotted, nodes, parsed

from ejcache import entry
from ejcache.keys.key import CacheKey
from ejcache.stores.opening import open_store

PACKAGE = ROOT / "src" / "ejcache"

LEVELS = {
    "_version": 0,
    "errors": 0,
    "events": 2,
    "util": 1,
    "entry": 2,
    "settings": 3,
    "keys": 4,
    "bucket": 5,
    "journal": 6,
    "stores": 7,
    "coordination": 8,
    "maintenance": 9,
    "cache": 10,
    "history": 11,
    "jax_integration": 12,
    "api": 13,
    "notebook": 13,
    "values": 13,
    "autotune": 14,
    "reuse": 14,
    "cli": 15,
    "reports": 16,
    "__main__": 16,
}
"""A room imports itself and rooms of lower levels."""

INNER_LEVELS = {
    "autotune": {
        "ejkernel_variables": 0,
        "log": 1,
        "progress": 2,
        "value_kinds": 1,
        "key_environment": 2,
        "records": 2,
        "measure": 4,
        "descriptions": 5,
        "fingerprint": 6,
        "choice": 5,
        "tuning_blocks": 5,
        "calls_ahead": 8,
        "measuring_lock": 8,
        "call_documents": 6,
        "call": 7,
        "recording": 8,
        "pod": 8,
        "chooser": 9,
        "operation": 10,
        "ejkernel": 11,
        "tuning_in_advance": 12,
    },
    "reports": {
        "sums": 0,
        "model": 1,
        "build": 2,
        "sections": 2,
        "compare_starts": 3,
        "html": 3,
        "trace": 3,
        "command": 4,
    },
    "reuse": {
        "notes": 0,
        "warned": 0,
        "result_trees": 1,
        "call_data": 1,
        "word": 1,
        "function": 1,
        "start": 1,
        "records": 1,
        "votes": 1,
        "calls": 3,
    },
    "values": {
        "code_files": 0,
        "distributions": 1,
        "names": 0,
        "plain_data": 2,
    },
    "history": {
        "host_log": 0,
        "definitions": 0,
        "known_entries": 0,
        "source_files": 0,
        "program_text": 1,
        "environment_difference": 1,
        "recorded_program": 2,
        "padding": 3,
        "difference": 3,
        "known_texts": 3,
        "nearest_program": 4,
        "causes": 5,
        "why": 6,
        "findings": 6,
        "asked_again": 7,
        "large_constants": 7,
        "single_operations": 7,
        "advise": 8,
        "guard": 9,
    },
    "stores": {
        "base": 0,
        "location": 0,
        "epochs": 1,
        "worth": 1,
        "network_filesystems": 1,
        "sharing_detection": 2,
        "host_notes": 1,
        "local": 2,
        "memory": 2,
        "shared": 2,
        "tiered": 2,
        "opening": 3,
        "tier_directory": 4,
        "contents": 4,
        "documents": 4,
    },
}
"""Within a room: a module or subpackage imports its own subpackage and lower levels. The room's `__init__` is above."""

SEAMS = {
    "aiohttp": ["bucket/*.py"],
    "adlfs": ["bucket/azure.py"],
    "aiobotocore": ["bucket/s3.py"],
    "azure": ["bucket/azure.py"],
    "botocore": ["bucket/s3.py"],
    "diskcache": ["stores/local/order.py", "stores/local/transaction.py"],
    "filelock": ["util/locks.py"],
    "fsspec": ["bucket/*.py"],
    "gcsfs": ["bucket/gcsfs_bucket.py"],
    "google": ["bucket/gcs.py", "bucket/google_credentials.py"],
    "requests": ["bucket/google_credentials.py"],
    "jax": [
        "jax_integration/*.py",
        "reuse/*.py",
        "values/*.py",
        *(
            f"autotune/{name}.py"
            for name in (
                "call_documents",
                "descriptions",
                "fingerprint",
                "key_environment",
                "operation",
                "tuning_in_advance",
                "value_kinds",
            )
        ),
        "autotune/measure/*.py",
    ],
    "jaxlib": ["jax_integration/*.py", "reuse/*.py"],
    "numpy": [
        "jax_integration/*.py",
        "reuse/*.py",
        "values/plain_data.py",
        "autotune/measure/gradients.py",
        "autotune/measure/inputs.py",
        "autotune/measure/space.py",
        "autotune/measure/output_comparison.py",
        "autotune/measure/search.py",
        "autotune/measure/varied_arrays.py",
        "autotune/value_kinds.py",
    ],
    "pynvml": ["autotune/measure/provenance.py"],
    "rich": ["cli/*.py", "autotune/progress.py"],
    "s3fs": ["bucket/*.py"],
    "sqlite3": ["stores/local/*.py"],
    "tomlkit": ["settings/config_files.py"],
    "typer": ["cli/*.py"],
    "zstandard": ["entry.py"],
}
"""The only files that may import each library from elsewhere; a library that is not here is imported by none."""

INTERNALS = ("jax._src", "jax.interpreters")
"""What may change with every release of JAX, and so is touched by the seam only."""

UNPICKLERS = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
"""Reading what one of these wrote runs whatever its writer liked."""

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}


def room_of(path: str) -> str:
    return path.split("/", maxsplit=1)[0].removesuffix(".py")


def imported_names(tree: ast.Module, path: str) -> list[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, with relative imports resolved."""
    package = ["ejcache", *Path(path).parent.parts]
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func).split(".")[-1] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.append((node.lineno, str(node.args[0].value)))
    return found


def touched_names(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, dotted name) of every attribute a module spells out, and of what it imports from `os`."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.lineno, dotted(node)))
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [(node.lineno, f"os.{alias.name}") for alias in node.names]
    return found


def inner_violations(path: str, line: int, name: str) -> list[str]:
    """What an import of `name`, of the same room, does against the levels within that room."""
    here, *rest = path.removesuffix(".py").split("/")
    levels = INNER_LEVELS.get(here)
    if levels is None or rest == ["__init__"]:
        return []
    ours, theirs = rest[0], name.split(".")[2]
    if ours == theirs or levels.get(theirs, 99) < levels.get(ours, 0):
        return []
    return [f"{path}:{line}: within {here}, {ours} is not above {theirs}, and imports {name}"]


def violations(path: str, source: str) -> list[str]:
    """What the module at `path`, relative to the package, does that its place does not allow."""
    tree = parsed(source)
    here = room_of(path)
    said = []
    if path != "__init__.py" and here not in LEVELS:
        said.append(f"{path}: no room is named {here}; give it its level in the table")
    for line, name in imported_names(tree, path):
        top, _, rest = name.partition(".")
        allowed = SEAMS.get(top)
        if top == "ejcache":
            there = rest.split(".")[0] or "__init__"
            if path == "__init__.py":
                continue
            if there == here:
                said += inner_violations(path, line, name)
                continue
            if LEVELS.get(there, 99) >= LEVELS.get(here, 0) and not (there == "__init__" and here == "cli"):
                said.append(f"{path}:{line}: {here} is not above {there}, and imports {name}")
        elif top in UNPICKLERS:
            said.append(f"{path}:{line}: nothing is unpickled, and this imports {name}")
        elif allowed is not None:
            if not any(fnmatch(path, pattern) for pattern in allowed):
                said.append(f"{path}:{line}: only {', '.join(allowed)} may import {name}")
            elif name.startswith(INTERNALS) and not fnmatch(path, "jax_integration/seam/*.py"):
                said.append(f"{path}:{line}: only the seam may import {name}")
        elif top not in sys.stdlib_module_names:
            said.append(f"{path}:{line}: no seam is named for {name}")
    for line, name in touched_names(tree):
        if name in ENVIRONMENT and not fnmatch(path, "settings/*.py"):
            said.append(f"{path}:{line}: only settings read the environment, and this uses {name}")
        elif name == "jax._src" and not fnmatch(path, "jax_integration/seam/*.py"):
            said.append(f"{path}:{line}: only the seam may touch {name}")
    return said


@cache
def modules() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_keeps_to_its_room():
    """No module of the package imports upwards or sideways, past a seam, or reads what is not its to read."""
    found = modules()
    assert len(found) > 10
    assert [said for path, source in found.items() for said in violations(path, source)] == []


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module → the modules of the package that it names anywhere: in functions and for type checkers, too."""
    names = {
        path: ".".join(["ejcache", *Path(path).with_suffix("").parts]).removesuffix(".__init__") for path in sources
    }
    known = set(names.values())
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        imported = {name for _, name in imported_names(parsed(source), path)}
        # `from a.b import c` names the module a.b.c if there is one, and a.b otherwise.
        modules_named = {name if name in known else name.rpartition(".")[0] for name in imported}
        graph[names[path]] = (modules_named & known) - {names[path]}
    return graph


def import_circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest groups of modules that import each other, directly or through others of the group."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            fresh = graph[pending.pop()] - seen
            seen |= fresh
            pending += fresh
        return seen

    reach = {module: reachable(module) for module in graph}
    groups = {frozenset(m for m in reach[module] if module in reach[m]) for module in graph if module in reach[module]}
    return [set(group) for group in sorted(groups, key=sorted)]


@cache
def graph_of_the_package() -> dict[str, set[str]]:
    return import_graph(modules())


def test_every_module_is_named_by_another_one():
    """By an import, or by a text that is imported or started later: what nothing names is dead, whatever tests it."""
    sources = modules()
    graph = graph_of_the_package()
    named = set().union(*graph.values())
    others = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text() for path in PACKAGE.parent.rglob("*.py")}
    for path in sources:
        module = ".".join(["ejcache", *Path(path).with_suffix("").parts])
        texts = (text for place, text in others.items() if place != f"ejcache/{path}")
        if module not in named and Path(path).stem not in {"__init__", "__main__"}:
            # A whole word, as in "ejcache.cli.commands.ls:ls", or the name of a script.
            wanted = re.compile(rf"[\"'](?:{re.escape(module)}[\"':]|{re.escape(Path(path).name)}[\"'])")
            assert any(map(wanted.search, texts)), f"{path} is named by no other module"


def test_no_modules_import_each_other():
    """There is no import circle, lazy imports and those for type checkers included."""
    assert import_circles(graph_of_the_package()) == []


def test_circles_are_found():
    """A circle is found through an import in a function, a relative one, a package, and a type checker's."""
    sources = {
        "a.py": "def f():\n    from ejcache.b import c",
        "b/__init__.py": "",
        "b/c.py": "if TYPE_CHECKING:\n    from ..d import name",
        "d.py": "import ejcache.a",
        "e.py": "import ejcache.a",
    }
    assert import_circles(import_graph(sources)) == [{"ejcache.a", "ejcache.b.c", "ejcache.d"}]


def test_the_core_imports_no_room_above_it(run_python, tmp_path):
    """Commands about the cache run without tuning and reports, which rows of tables name.

    So does a start with a hit: test_import_cost.py.
    """
    with open_store(tmp_path / "cache") as store:
        store.put("k", b"value")
    code = """
        import sys
        from ejcache.cli.main import main

        assert main(["ls", "--dir", sys.argv[1]]) == main(["stats", "--dir", sys.argv[1]]) == main(["config"]) == 0
        print([name for name in sys.modules if name.startswith(("ejcache.autotune", "ejcache.reports"))])
    """
    assert run_python(code, str(tmp_path / "cache")).stdout.splitlines()[-1] == "[]"


def test_one_module_imports_diskcache():
    """The local order has one seam, not several; its changes name the type."""
    assert [path for path, source in modules().items() if re.search(r"\b(?:import|from) diskcache\b", source)] == [
        "stores/local/order.py",
        "stores/local/transaction.py",
    ]


def test_package_imports_nothing_at_once():
    """`import ejcache` runs no import but of the standard library and the version."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    at_once = ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])
    names = [
        name
        for node in at_once.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for _, name in imported_names(node, "__init__.py")
    ]
    assert names
    assert [
        n for n in names if n.split(".")[0] not in sys.stdlib_module_names and not n.startswith("ejcache._version")
    ] == []


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("stores/base.py", "from ejcache.maintenance.eviction_plan import Plan", "stores is not above maintenance"),
        ("stores/base.py", "from ejcache import cache", "stores is not above cache"),
        ("stores/base.py", "from ..maintenance import plan", "stores is not above maintenance"),
        ("stores/base.py", "import ejcache", "stores is not above __init__"),
        ("entry.py", "def f():\n    from ejcache.keys.key import CacheKey", "entry is not above keys"),
        ("entry.py", "if TYPE_CHECKING:\n    import ejcache.settings.resolve", "entry is not above settings"),
        ("jax_integration/decorator.py", "import ejcache.autotune.chooser", "jax_integration is not above autotune"),
        ("autotune/measure/tuner.py", "import ejcache.autotune.chooser", "measure is not above chooser"),
        ("autotune/new.py", "import ejcache.autotune.tuning_in_advance", "new is not above tuning_in_advance"),
        ("keys/flags.py", "import jax", "may import jax"),
        ("keys/flags.py", "import importlib\nimportlib.import_module('jax.numpy')", "may import jax.numpy"),
        ("jax_integration/decorator.py", "from jax._src import compiler", "only the seam may import jax._src.compiler"),
        ("jax_integration/decorator.py", "import jax\njax._src.compiler.f()", "only the seam may touch jax._src"),
        ("stores/opening.py", "import diskcache", "may import diskcache"),
        ("stores/base.py", "import gcsfs", "may import gcsfs"),
        ("cli/main.py", "import httpx", "no seam is named for httpx"),
        ("stores/base.py", "import pickle", "nothing is unpickled"),
        ("stores/base.py", "from pickle import loads", "nothing is unpickled"),
        ("stores/base.py", "from marshal import dumps", "nothing is unpickled"),
        ("stores/base.py", "import os\nx = os.environ['A']", "only settings read the environment"),
        ("cli/main.py", "from os import getenv", "only settings read the environment"),
        ("cli/main.py", "import os\nos.getenv('A')", "only settings read the environment"),
        ("misc.py", "x = 1", "no room is named misc"),
    ],
)
def test_checker_finds(path, source, said):
    """The checker sees each kind of trespass, wherever in the module it is."""
    found = violations(path, source)
    assert len(found) == 1
    assert said in found[0]


def test_checker_allows():
    """What each room is for is no trespass."""
    fine = {
        "stores/local/order.py": "import diskcache\nimport os\nfrom ejcache.stores.base import Store",
        "bucket/gcsfs_bucket.py": "import fsspec\nimport gcsfs",
        "settings/resolve.py": "import os\nfrom ejcache.settings.resolve import Setting\nos.environ['A']",
        "jax_integration/seam/patch.py": "import jax\nfrom jax._src import compiler\njax._src.f()",
        "autotune/measure/tuner.py": "import jax",
        "cli/main.py": "import typer\nimport ejcache\nfrom ejcache.jax_integration.activate import enable",
        "__init__.py": "from ejcache.jax_integration.decorator import ejit",
    }
    assert {path: violations(path, source) for path, source in fine.items()} == {path: [] for path in fine}


PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def rooms_of_the_page() -> dict[str, str]:
    """The rows of the table of rooms: room → what the row says."""
    table = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)/?` \| (.*) \|$", table, flags=re.MULTILINE))


def test_the_page_has_every_room_in_its_order():
    """A room imports those above it in the table of ARCHITECTURE.md, and none that is missing there."""
    rows = list(rooms_of_the_page())
    assert rows == sorted(rows, key=LEVELS.__getitem__)
    assert set(LEVELS) - set(rows) == {"_version", "__main__"}


def test_the_page_names_what_its_rooms_have():
    """A name in backquotes in a row is a module of that room, or stands in one of its modules."""
    for room, said in rooms_of_the_page().items():
        ours = {path: text for path, text in modules().items() if room_of(path) == room}
        names = {part.removesuffix(".py") for path in ours for part in path.split("/")}
        for name in re.findall(r"`(\w+)`", said):
            assert name in names or any(re.search(rf"\b{name}\b", text) for text in ours.values()), (room, name)


def test_paths_of_the_page_exist():
    """Each path and folder in backquotes is of the package, of its source directory, or of the repository."""
    paths = re.findall(r"`((?:[\w.]+/)+(?:[\w.]+)?)(?:::(\w+))?`", PAGE)
    assert len(paths) > 60
    for path, name in paths:
        (found,) = {place for place in (PACKAGE, ROOT) if (place / path).exists()} or {None}
        assert found, path
        assert not name or re.search(rf"^(?:def|class) {name}\b", (found / path).read_text(), flags=re.MULTILINE), name


def test_the_steps_of_a_compilation_are_methods():
    """Each numbered step is a method of `Compiler` or `MissedPrograms`, in the order of the two files."""
    steps = re.findall(r"^\d\. `(\w+)`", PAGE.partition("## How a compilation goes")[2], flags=re.MULTILINE)
    both = "".join(modules()[f"jax_integration/{name}.py"] for name in ("pipeline", "misses"))
    methods = re.findall(r"^    def (\w+)\(", both, flags=re.MULTILINE)
    assert steps == [name for name in methods if name in steps]
    assert len(steps) == 3


def test_the_page_shows_the_formats():
    """The first bytes of an entry, the parts of a key and the variants of a program are those of the code."""
    magic = re.search(r'magic "(\w+)"', PAGE)
    assert magic
    key = CacheKey(name="jit_step", platform="cpu", components={"computation": "a", "jaxlib": "b"})
    assert entry.encode(entry.Header(key=key.text), b"").startswith(magic[1].encode())
    parts = re.search(r"`(<name>-.*?)`", PAGE)
    assert parts
    assert key.text == "-".join(str(getattr(key, field)) for field in re.findall(r"<(\w+)>", parts[1]))
    variants = re.search(r"variants of a program are (.*?)\. \[", PAGE, flags=re.DOTALL)
    assert variants
    grammar = re.search(r"^ +variant := (.*)$", modules()["keys/key.py"], flags=re.MULTILINE)
    assert grammar
    assert set(re.findall(r"`(\w+)`", variants[1])) == set(re.findall(r'"(\w+)"', grammar[1]))


def test_what_the_page_calls_the_only_one_is():
    """`Bucket._ask` is there, and one module registers what runs at an exit and after a fork."""
    assert re.search(r"^    def _ask\(", modules()["bucket/base.py"], flags=re.MULTILINE)
    for name in ("atexit", "register_at_fork"):
        users = [path for path, text in modules().items() if re.search(rf"\b{name}(?:\.register)?\(", text)]
        assert users == ["util/lifecycle.py"], (name, users)
