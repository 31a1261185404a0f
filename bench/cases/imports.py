"""What `import ejcache` adds to a Python that does nothing, and what no cache adds to JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import Summary, summarize, take_turns
from bench.outcome import OURS, at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome


@case("import", title="import ejcache, beyond bare Python", order=60)
def import_cost(context: Context, outcome: Outcome) -> None:
    """Wall time of whole processes, which take turns; the difference of the medians is the cost."""
    with context.directory() as home:
        calls = {
            "bare Python": (lambda: context.start("-c", "pass", home=home), 2),
            OURS: (lambda: context.start("-c", "import ejcache", home=home), 2),
            "jax": (lambda: context.start("-c", "import jax", home=home), 1),
        }
        context.say("starting interpreters")
        # The first start of each compiles and reads what the others find ready.
        take_turns(calls, rounds=1)
        samples = take_turns(calls, rounds=context.pick(25, 4))
    found: dict[str, Summary] = {name: summarize(taken) for name, taken in samples.items()}
    outcome.line("a process that imports", found)
    bare = found["bare Python"].median
    outcome.ratio("import ejcache, beyond bare Python", (found[OURS].median - bare) * 1e3, at_most(50), unit="ms")
    outcome.ratio("import jax, beyond bare Python", (found["jax"].median - bare) * 1e3, unit="ms")


_UNSET = """
import sys, time
import jax
sys.modules.pop("jax_plugins", None)
began = time.perf_counter()
import jax_plugins, pkgutil
from importlib import import_module
found = {name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__, "jax_plugins.")}
for name in found | {"ejcache_jax_plugin"}:
    if "ejcache" in name:
        import_module(name).initialize()
print(time.perf_counter() - began)
assert "ejcache" not in sys.modules
"""
"""What JAX does for ejcache when it makes a backend and `EJCACHE` is not set."""


@case("unset", title="what ejcache adds to JAX's first backend while EJCACHE is not set", order=61)
def unset_cost(context: Context, outcome: Outcome) -> None:
    """Finding, importing and calling our two modules. A difference of whole processes would be lost in their noise."""
    with context.directory() as home:
        context.say("starting interpreters")
        context.start("-c", _UNSET, home=home)
        taken = [float(context.start("-c", _UNSET, home=home)[1]) for _ in range(context.pick(15, 2))]
    found = summarize(taken)
    outcome.line("found, imported and called", {OURS: found})
    outcome.ratio("ejcache in JAX's first backend", found.median * 1e3, at_most(1), unit="ms")
