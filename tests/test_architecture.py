"""Imports point downwards, each third-party library has one seam, and only settings read the environment.

The checker reads the syntax tree, imports inside functions and under TYPE_CHECKING included: knowing a name is
knowing it, whenever it is looked up. The package's own `__init__` may name everything, lazily.
"""

from __future__ import annotations

import ast
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from helpers import ROOT

PACKAGE = ROOT / "src" / "ejcache"

LEVELS = {
    "_version": 0,
    "errors": 0,
    "units": 1,
    "entry": 2,
    "settings": 3,
    "keys": 4,
    "misses": 5,
    "stores": 5,
    "statistics": 6,
    "upkeep": 6,
    "explaining": 7,
    "compilation": 8,
    "reporting": 8,
    "jaxside": 9,
    "autotune": 10,
    "cli": 11,
    "__main__": 12,
    "testing": 12,
}
"""A room imports itself and rooms of lower levels; nobody imports `testing`. Files such as settings_flags.py and
compilation_x.py belong to the room that their name begins with."""

SEAMS = {
    "aiohttp": ["stores/shared_*.py"],
    "botocore": ["stores/shared_s3.py"],
    "diskcache": ["stores/local*.py"],
    "filelock": ["stores/*.py", "autotune/*.py"],
    "fsspec": ["stores/shared*.py"],
    "gcsfs": ["stores/shared*.py"],
    "google": ["stores/shared_gcs*.py"],
    "hypothesis": ["testing/*.py"],
    "jax": ["jaxside/*.py", "autotune/measure*.py", "cli/demo_program.py"],
    "jaxlib": ["jaxside/*.py", "autotune/measure*.py"],
    "numpy": ["jaxside/*.py", "autotune/measure*.py", "cli/demo_program.py"],
    "pytest": ["testing/*.py"],
    "rich": ["cli/*.py"],
    "s3fs": ["stores/shared*.py"],
    "sqlite3": ["stores/local*.py", "upkeep/table.py"],
    "typer": ["cli/*.py"],
    "zstandard": ["entry.py"],
}
"""The only files that may import each library from elsewhere; a library that is not here is imported by none."""

INTERNALS = ("jax._src", "jax.interpreters")
"""What may change with every release of JAX, and so is touched by the seam only."""

UNPICKLERS = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
"""Reading what one of these wrote runs whatever its writer liked."""

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}

MAX_LINES = 700


def room_of(path: str) -> str:
    first = path.split("/", maxsplit=1)[0].removesuffix(".py")
    if first in LEVELS or "/" in path:
        return first
    return next((room for room in LEVELS if first.startswith(f"{room}_")), first)


def imported_names(tree: ast.AST, path: str) -> list[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, with relative imports resolved."""
    package = ["ejcache", *Path(path).parent.parts]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.append((node.lineno, str(node.args[0].value)))
    return found


def touched_names(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of every attribute a module spells out, and of what it imports from `os`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [(node.lineno, f"os.{alias.name}") for alias in node.names]
    return found


def violations(path: str, source: str) -> list[str]:
    """What the module at `path`, relative to the package, does that its place does not allow."""
    tree = ast.parse(source)
    here = room_of(path)
    said = []
    if path != "__init__.py" and here not in LEVELS:
        said.append(f"{path}: no room is named {here}; give it its level in the table")
    for line, name in imported_names(tree, path):
        top, _, rest = name.partition(".")
        allowed = SEAMS.get(top)
        if top == "ejcache":
            there = rest.split(".")[0] or "__init__"
            there = there if there in LEVELS else room_of(f"{there}.py")
            if path == "__init__.py" or there == here:
                continue
            if there == "testing":
                said.append(f"{path}:{line}: nobody imports testing, and this imports {name}")
            elif LEVELS.get(there, 99) >= LEVELS.get(here, 0) and not (there == "__init__" and here == "cli"):
                said.append(f"{path}:{line}: {here} is not above {there}, and imports {name}")
        elif top in UNPICKLERS:
            said.append(f"{path}:{line}: nothing is unpickled, and this imports {name}")
        elif allowed is not None:
            if not any(fnmatch(path, pattern) for pattern in allowed):
                said.append(f"{path}:{line}: only {', '.join(allowed)} may import {name}")
            elif name.startswith(INTERNALS) and not fnmatch(path, "jaxside/seam*.py"):
                said.append(f"{path}:{line}: only the seam may import {name}")
        elif top not in sys.stdlib_module_names:
            said.append(f"{path}:{line}: no seam is named for {name}")
    for line, name in touched_names(tree):
        if name in ENVIRONMENT and not fnmatch(path, "settings*.py"):
            said.append(f"{path}:{line}: only settings read the environment, and this uses {name}")
        elif name == "jax._src" and not fnmatch(path, "jaxside/seam*.py"):
            said.append(f"{path}:{line}: only the seam may touch {name}")
    if len(lines := source.splitlines()) > MAX_LINES:
        said.append(f"{path}: {len(lines)} lines, and a module has at most {MAX_LINES}")
    return said


def modules() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_keeps_to_its_room():
    """No module of the package imports upwards or sideways, past a seam, or reads what is not its to read."""
    found = modules()
    assert len(found) > 10
    assert [said for path, source in found.items() for said in violations(path, source)] == []


def test_one_module_imports_diskcache():
    """The local index has one seam, not several."""
    importers = [
        path
        for path, source in modules().items()
        if any(name.split(".")[0] == "diskcache" for _, name in imported_names(ast.parse(source), path))
    ]
    assert len(importers) <= 1


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
    assert [n for n in names if n.split(".")[0] not in sys.stdlib_module_names and "_version" not in n] == []


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("stores/local.py", "from ejcache.upkeep.plan import Plan", "stores is not above upkeep"),
        ("stores/local.py", "from ejcache import compilation", "stores is not above compilation"),
        ("stores/local.py", "from ..upkeep import plan", "stores is not above upkeep"),
        ("stores/local.py", "import ejcache", "stores is not above __init__"),
        ("entry.py", "def f():\n    from ejcache.keys.key import CacheKey", "entry is not above keys"),
        ("entry.py", "if TYPE_CHECKING:\n    import ejcache.settings", "entry is not above settings"),
        ("jaxside/ejit.py", "import ejcache.autotune.choose", "jaxside is not above autotune"),
        ("cli/main.py", "from ejcache.testing import StoreTests", "nobody imports testing"),
        ("keys/flags.py", "import jax", "may import jax"),
        ("keys/flags.py", "import importlib\nimportlib.import_module('jax.numpy')", "may import jax.numpy"),
        ("jaxside/ejit.py", "from jax._src import compiler", "only the seam may import jax._src.compiler"),
        ("jaxside/ejit.py", "import jax\njax._src.compiler.f()", "only the seam may touch jax._src"),
        ("stores/opening.py", "import diskcache", "may import diskcache"),
        ("stores/local.py", "import gcsfs", "may import gcsfs"),
        ("cli/main.py", "import requests", "no seam is named for requests"),
        ("stores/local.py", "import pickle", "nothing is unpickled"),
        ("stores/local.py", "from pickle import loads", "nothing is unpickled"),
        ("stores/local.py", "import os\nx = os.environ['A']", "only settings read the environment"),
        ("cli/main.py", "from os import getenv", "only settings read the environment"),
        ("cli/main.py", "import os\nos.getenv('A')", "only settings read the environment"),
        ("misc.py", "x = 1", "no room is named misc"),
        ("entry.py", "x = 1\n" * 701, "701 lines"),
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
        "stores/local.py": "import diskcache\nimport os\nfrom ejcache.stores.base import Store\nfrom . import base",
        "stores/shared_gcs.py": "import fsspec\nimport gcsfs",
        "settings_flags.py": "import os\nfrom ejcache.settings import Setting\nos.environ['A']",
        "jaxside/seam_0_10.py": "import jax\nfrom jax._src import compiler\njax._src.f()",
        "autotune/measure.py": "import jax",
        "cli/main.py": "import typer\nimport ejcache\nfrom ejcache.jaxside.activate import enable",
        "testing/suite.py": "import pytest\nfrom ejcache.cli.main import main",
        "__init__.py": "from ejcache.jaxside.ejit import ejit",
    }
    assert {path: violations(path, source) for path, source in fine.items()} == {path: [] for path in fine}
