"""One start of a soak: a program or a pytest suite whose every `jax.jit` is a direct function (see `direct_soak.py`).

python direct_soak_child.py PLAN

The plan is a JSON file: `cache` (a directory), `results` (a file, written after each test and at the end), `pytest`
(its arguments) or `program` (a script and its arguments), `seconds` (no test begins later), `tests` (run these alone).
`jax.jit` is replaced before anything else is imported, so that decorators, `partial(jax.jit, …)` and
`from jax import jit` of libraries use it, too. JAX's own functions keep theirs.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import ejcache

Plan = dict[str, Any]


class Results:
    """What direct mode said, by the test during which it said it; in a file, so that a killed process leaves it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.write_text("", encoding="utf-8")
        self._seen: Any = None

    def take(self, test: str) -> None:
        """Write down what is new since the last call."""
        from ejcache.direct.verdicts import last_verdicts

        said = last_verdicts()
        begin = next((place for place in range(len(said), 0, -1) if said[place - 1] is self._seen), 0)
        self._seen = said[-1] if said else None
        line = {
            "test": test,
            "said": [(each.function, str(each.verdict), each.sentence) for each in said[begin:]],
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Watch:
    """The pytest plugin: it leaves out what the first start did not run, and stops when the time is over."""

    def __init__(self, plan: Plan, results: Results) -> None:
        self._tests = None if plan["tests"] is None else set(plan["tests"])
        self._end = time.monotonic() + plan["seconds"]
        self._results = results

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self._tests is not None:
            left_out = [item for item in items if item.nodeid not in self._tests]
            items[:] = [item for item in items if item.nodeid in self._tests]
            config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._results.take(nodeid)

    def pytest_runtest_setup(self, item: Any) -> None:
        if self._tests is None and time.monotonic() > self._end:
            item.session.shouldstop = "the time of the soak is over"


class JaxForEjcache(ModuleType):
    """What ejcache's own modules know as `jax`: the module with JAX's own `jit`."""

    def __init__(self, jax: Any) -> None:
        super().__init__("jax")
        self.jit = jax.jit
        self._jax = jax

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jax, name)


def replace_jit() -> None:
    """Make `jax.jit` `@ejit`; it is no function of this file, where a fingerprint would walk it as the user's."""
    import jax

    known = JaxForEjcache(jax)
    for found in pkgutil.walk_packages(ejcache.__path__, "ejcache."):
        if found.name.startswith("ejcache.jax_integration"):
            module: Any = importlib.import_module(found.name)
            if vars(module).get("jax") is jax:
                module.jax = known
    jax.jit = ejcache.ejit


def main() -> int:
    plan: Plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    replace_jit()
    ejcache.enable(plan["cache"])
    results = Results(plan["results"])
    # A script's own directory comes first, as when Python runs it; this one's must not be there.
    if plan["pytest"]:
        sys.path.pop(0)
        import pytest

        return int(pytest.main(plan["pytest"], plugins=[Watch(plan, results)]))
    sys.argv = list(plan["program"])
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        results.take("")
    return 0


if __name__ == "__main__":
    sys.exit(main())
