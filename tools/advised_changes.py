"""Make the change that `ejcache advise` says in programs, and measure what it saves.

    python tools/advised_changes.py [--rounds 5] [--warm] [TITLE …]

The programs are planted ones, and those of libraries in `bench/programs/start`. Each start is a process with an empty
cache, or with --warm one that finds all its programs there; starts before and after the change take turns. What was
said is the median of the first finding of that kind. What was saved is the difference of the medians of what all
programs of a start took, without waiting. Records have wall time, so that all is multiplied by the CPU seconds that the
process took for each second of its wall time.

Exit status 0 if what was said is true: `at least`, `about` and `at most` so many seconds, each to 30 %. Of a finding
that says no saving, the seconds that it cost are the most that can be saved.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ejcache.history.advise import advise
from ejcache.history.findings import AT_LEAST, AT_MOST, Saving
from ejcache.history.recorded_program import spent
from ejcache.history.source_files import SourceFiles
from ejcache.journal.start_records import read_starts

if TYPE_CHECKING:
    from ejcache.history.findings import Advice

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

_NEAR: Final = 0.3
_SIZES: Final = {"equinox": 20, "numpyro": 100, "optax": 20, "diffrax": 3}
"""Steps of a program of a library; 8 of the others."""

CHANGES: Final = {
    "made_anew-plain": (
        ("for _ in range(6):\n    y = jax.jit(lambda p, x: mlp(p, x).sum())(params, x)",
         "step = jax.jit(lambda p, x: mlp(p, x).sum())\nfor _ in range(6):\n    y = step(params, x)"),
    ),
    "made_anew-equinox": (
        ("def predict(arrays, x):\n    return jax.jit(lambda a, x: jax.vmap(eqx.combine(a, static))(x))(arrays, x)",
         "predict = jax.jit(lambda a, x: jax.vmap(eqx.combine(a, static))(x))"),
    ),
    "shape_varies-plain": (
        ("    step(params, np.ones((size, 16), np.float32))",
         "    size = next(each for each in SIZES if each >= size)\n    step(params, np.ones((size, 16), np.float32))"),
    ),
    "shape_varies-linen": (
        (
            "    out = apply(params, np.ones((2, length, 16), np.float32))",
            (
                "    length = next(each for each in SIZES if each >= length)\n"
                "    out = apply(params, np.ones((2, length, 16), np.float32))"
            ),
        ),
    ),
    "static_number-plain": (
        ('jax.jit(step, static_argnames="rate")', "jax.jit(step)"),
        ("rate=0.1 * (n + 3))", "rate=np.float32(0.1 * (n + 3)))"),
    ),
    "static_number-equinox": (("3.0 + n)", "np.float32(3.0 + n))"),),
    "placement-linen": (
        ("placed = [params,", "params = jax.device_put(params, jax.devices()[0])\nplaced = [params,"),
    ),
    "weak_type-plain": (("in (1.0, np.float32(1.0))", "in (np.float32(1.0), np.float32(1.0))"),),
    "single_operations-plain": (("\nprepare(", "\njax.jit(prepare)("),),
    "single_operations-linen": (("\nmetrics(", "\njax.jit(metrics)("),),
    "large_constant-trainer": (
        ("step(self.params, batch)", "step(self.params, batch, self.table)"),
        ("def step(self, params, batch):", "def step(self, params, batch, table):"),
        ('new["w"] @ self.table', 'new["w"] @ table'),
    ),
    "large_constant-linen": (
        ("def loss(x):", "def loss(x, big):"),
        ("jax.jit(loss)(np.ones((4, 16), np.float32))", "jax.jit(loss)(np.ones((4, 16), np.float32), big)"),
    ),
    "large_constant-plain": (
        ("def lookup(params, x):", "def lookup(params, x, table):"),
        ("lookup(params, np.ones((4, 16), np.float32))", "lookup(params, np.ones((4, 16), np.float32), table)"),
    ),
    "made_anew-nnx.py": (
        ("nnx.jit(lambda model, tokens: model(tokens))(model, tokens)", "predict(model, tokens)"),
        ("def accuracy(", "predict = nnx.jit(lambda model, tokens: model(tokens))\ndef accuracy("),
    ),
    "single_operations-nnx.py": (("CNN(rngs=nnx.Rngs(0))", "nnx.jit(lambda: CNN(rngs=nnx.Rngs(0)))()"),),
    "large_constant-linen.py": (
        ("def step(params, tokens):", "def step(params, tokens, teacher_params):"),
        ("= step(params, tokens)", "= step(params, tokens, teacher_params)"),
    ),
    "real_flax": (("model = Network(nnx.Rngs(0))", "model = nnx.jit(lambda: Network(nnx.Rngs(0)))()"),),
    "real_equinox": (
        ("model = Network(16, jax.random.PRNGKey(0))",
         "model = eqx.filter_jit(lambda: Network(16, jax.random.PRNGKey(0)))()"),
    ),
    "real_optax": (
        ("    keys = jax.random.split(jax.random.key(0), len(WIDTHS))\n    parameters = [",
         ("    return _fit(steps, *jax.jit(_begin)())\n\n\ndef _begin():\n"
          "    keys = jax.random.split(jax.random.key(0), len(WIDTHS))\n    parameters = [")),
        ("    schedule = ",
         "    return parameters, x, y\n\n\ndef _fit(steps, parameters, x, y):\n    schedule = "),
        ("state = optimizer.init(parameters)", "state = jax.jit(optimizer.init)(parameters)"),
        ("state = solver.init(parameters)", "state = jax.jit(solver.init)(parameters)"),
    ),
    "real_diffrax": (
        ("    field = Field(",
         "    optimizer = optax.adabelief(3e-3)\n\n    @eqx.filter_jit\n    def make():\n        field = Field("),
        ("    optimizer = optax.adabelief(3e-3)\n    state = optimizer.init(eqx.filter(field, eqx.is_inexact_array))",
         "        return field, optimizer.init(eqx.filter(field, eqx.is_inexact_array))\n\n    field, state = make()"),
    ),
    "real_haiku": (
        ("parameters = loss.init(", "parameters = jax.jit(loss.init)("),
        ("state = optimizer.init(parameters)", "state = jax.jit(optimizer.init)(parameters)"),
        ("generate.apply(parameters", "jax.jit(generate.apply)(parameters"),
    ),
    "real_linen": (("params=network.init(start", "params=jax.jit(network.init)(start"),),
    "real_stax": (
        ("_, parameters = init_parameters(jax.random.key(0), (-1, 784))",
         "state = jax.jit(lambda key: opt_init(init_parameters(key, (-1, 784))[1]))(jax.random.key(0))"),
        ("state, count = opt_init(parameters), itertools.count()", "count = itertools.count()"),
        ("    def accuracy(", "    @jax.jit\n    def accuracy("),
    ),
    "real_optimistix": (("partial(_main, 64 + size)", "partial(jax.jit(_main, static_argnums=0), 64 + size)"),),
    "real_numpyro": (
        ("    inference = MCMC(", "    @jax.jit\n    def everything():\n        inference = MCMC("),
        ("    inference.run(", "        inference.run("),
        ("    drawn = inference", "        drawn = inference"),
        ("    predicted = Predictive", "        predicted = Predictive"),
        ('    energy = inference.get_extra_fields()["potential_energy"]\n',
         ('        energy = inference.get_extra_fields()["potential_energy"]\n'
          "        return energy, predicted, inference.get_samples(group_by_chain=True)\n\n"
          "    energy, predicted, drawn = everything()\n")),
        ("summary(inference.get_samples(group_by_chain=True))", "summary(jax.tree.map(np.asarray, drawn))"),
    ),
}  # fmt: skip
"""By the title of a planted program, or the name of a file of one, what the advised change replaces.

`SIZES` are the sizes that the finding says.
"""


class Start(NamedTuple):
    """A start.

    Attributes:
        spent: CPU seconds of all its programs.
        processor: CPU seconds of the whole process.
        ratio: CPU seconds of the process for each second of its wall time.
        findings: all of them.
    """

    spent: float
    processor: float
    ratio: float
    findings: list[Advice]


def start(text: str, path: Path, *, warm: bool) -> Start:
    """Start a program with an empty cache, or, if `warm`, once more after that; and read what was recorded."""
    path.write_text(text, encoding="utf-8")
    sources = SourceFiles(until=time.time())
    env = {name: value for name, value in os.environ.items() if not name.startswith(("EJCACHE", "JAX_"))}
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        env |= {"XDG_CACHE_HOME": home, "JAX_PLATFORMS": "cpu"}
        for _ in range(1 + warm):
            before, began = _processor_seconds(), time.perf_counter()
            command = [sys.executable, "-m", "ejcache", "run", "--quiet", str(path)]
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took = _processor_seconds() - before
            ratio = took / (time.perf_counter() - began)
        records = read_starts()
        findings = advise(records, lines_of=sources.lines, least=0.0)
    return Start(ratio * sum(map(spent, records[-1].programs)), took, ratio, findings)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def changed(title: str, text: str, what_to_do: str) -> str:
    """The program after the change."""
    for old, new in CHANGES[title]:
        assert old in text, (title, old)
        text = text.replace(old, new)
    sizes = re.search(r" to ([\d, ]+):", what_to_do)
    future, marker, rest = text.rpartition("from __future__ import annotations\n")
    return f"{future}{marker}SIZES = [{sizes[1] if sizes else ''}]; {rest.lstrip()}"


def said(finding: Advice) -> Saving:
    """What a finding says that a change saves."""
    return finding.saves[0] if finding.saves else Saving(AT_MOST, finding.seconds)


def is_true(known: str, told: float, saved: float) -> bool:
    """True if what was said is what was saved."""
    return (known == AT_MOST or saved >= (1 - _NEAR) * told) and (known == AT_LEAST or saved <= (1 + _NEAR) * told)


def measure(title: str, text: str, path: Path, *, rounds: int, warm: bool) -> bool:
    """Measure one program, print what was found, and return whether what was said is true."""
    first = start(text, path, warm=warm).findings[0]
    after_text = changed(title, text, first.what_to_do)
    told, before, after = list[float](), list[Start](), list[Start]()
    for _ in range(rounds):
        before.append(start(text, path, warm=warm))
        told += [said(each).seconds * before[-1].ratio for each in before[-1].findings if each.kind == first.kind][:1]
        after.append(start(after_text, path, warm=warm))
    known, were = said(first).known, median(each.spent for each in before)
    saved = were - median(each.spent for each in after)
    process = [median(each.processor for each in starts) for starts in (before, after)]
    held = is_true(known, median(told), saved)
    print(
        f"{title:24} {first.kind:17} {known:8} {median(told):5.2f} s, saved {saved:5.2f} of {were:5.2f} s; process "
        f"{process[0]:.2f} -> {process[1]:.2f} s: {'true' if held else 'NOT TRUE'}",
        flush=True,
    )
    return held


def texts() -> dict[str, str]:
    """The programs by their titles."""
    from start_cases import PLANTED  # type: ignore[import-not-found]  # of the tests

    found = {each.title: each.text for each in cast("list[Any]", PLANTED)}
    found |= {each.name: each.read_text("utf-8") for each in (ROOT / "tests" / "data" / "planted").glob("*.py")}
    for path in (ROOT / "bench" / "programs" / "start").glob("real_*.py"):
        size = _SIZES.get(path.stem.removeprefix("real_"), 8)
        found[path.stem] = f"{path.read_text('utf-8')}\n\nfor call in calls({size}):\n    call()\n"
    return found


def main() -> int:
    """Measure the programs of these titles, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("titles", nargs="*", metavar="TITLE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="measure starts that find all programs in the cache")
    asked = parser.parse_args()
    titles = asked.titles or list(CHANGES)
    of_title = texts()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "train.py")
        held = [measure(each, of_title[each], path, rounds=asked.rounds, warm=asked.warm) for each in titles]
    print(f"what was said is true of {sum(held)} of {len(titles)}")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
