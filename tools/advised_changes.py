"""Make the change that `ejcache advise` says in planted programs, and measure what it saves.

    python tools/advised_changes.py [--rounds 5] [TITLE …]

Each program is started with an empty cache before and after the change, in turns, in one process. All is in CPU
seconds: what was saved is the difference of the medians; what was said is the median of `saved`, which is wall time,
times the CPU seconds of the start for each second of its wall time. Exit status 0 if at least half of what was said
is saved in four of five programs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

import jax

import ejcache
from ejcache.history.advise import advise
from ejcache.history.text import SourceFiles
from ejcache.journal.recorder import recorder
from ejcache.journal.start_records import read_starts

if TYPE_CHECKING:
    from ejcache.history.findings import Advice

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

_PART: Final = 0.5
_MOST: Final = 0.8

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
}  # fmt: skip
"""By the title of a planted program, or the name of a file of one, what the advised change replaces.

`SIZES` are the sizes that the finding says.
"""


def start(text: str, path: Path) -> tuple[float, float, list[Advice]]:
    """The CPU seconds of a start with an empty cache, these for each second of wall time, and its findings."""
    path.write_text(text)
    sources = SourceFiles(until=time.time())
    jax.clear_caches()
    recorder.after_fork_in_child()
    with tempfile.TemporaryDirectory() as cache, ejcache.enable(cache, min_compile_seconds=0):
        code = compile(text, str(path), "exec")
        began, moment = time.process_time(), time.perf_counter()
        exec(code, {"__name__": "__main__"})
        took, wall = time.process_time() - began, time.perf_counter() - moment
    return (
        took,
        took / wall,
        advise(read_starts(), lines_of=sources.lines, least=0.0, only={recorder.id}),
    )


def changed(title: str, text: str, said: Advice) -> str:
    """The program after the change."""
    for old, new in CHANGES[title]:
        assert old in text, (title, old)
        text = text.replace(old, new)
    sizes = re.search(r" to ([\d, ]+):", said.what_to_do)
    return f"SIZES = [{sizes[1] if sizes else ''}]; " + text


def measure(title: str, text: str, place: Path, *, rounds: int) -> tuple[Advice, float, float, float]:
    """The finding, and the medians of what was said and of the CPU seconds before and after the change."""
    path = place / "train.py"
    *_, found = start(text, path)
    first = found[0]
    after_text = changed(title, text, first)
    start(after_text, path)
    said, before, after = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        took, part, found = start(text, path)
        before.append(took)
        said += [each.saved * part for each in found if each.kind == first.kind][:1]
        after.append(start(after_text, path)[0])
    return first, median(said), median(before), median(after)


def main() -> int:
    """Measure the programs of these titles, or all."""
    from planted import PLANTED  # type: ignore[import-not-found]  # of the tests

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("titles", nargs="*", metavar="TITLE")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    texts = {each.title: each.text for each in cast("list[Any]", PLANTED)}
    files = (Path(__file__).parents[1] / "tests" / "data" / "planted").glob("*.py")
    texts |= {each.name: each.read_text() for each in files}
    titles = asked.titles or list(CHANGES)
    held = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = place
        for title in titles:
            first, said, before, after = measure(title, texts[title], Path(place), rounds=asked.rounds)
            is_held = before - after >= _PART * said
            held += is_held
            print(
                f"{title:24} {first.saves[0].known:9} said {said:.3f} s, saved {before - after:.3f} s of {before:.3f} "
                f"CPU seconds: {'held' if is_held else 'NOT HELD'}",
                flush=True,
            )
    print(f"{held} of {len(titles)} saved at least {_PART:.0%} of what was said")
    return int(held < _MOST * len(titles))


if __name__ == "__main__":
    sys.exit(main())
