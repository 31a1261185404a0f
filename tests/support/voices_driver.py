"""`voices_driver.py DIR` compiles pairs of `why_pairs`, and asks three commands about the second program of each.

Prints a JSON object for each pair. Before some of them, another script runs that has a function of the same name.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from why_driver import compile_program
from why_pairs import PAIRS, WhyPair

COUNT = 20
STRANGERS = 10
OTHER = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def {name}(x):
    return jnp.cumsum(x * 3) @ jnp.sin(x)

{name}(np.ones(7, np.float32))
"""


def run_other(name: str, place: Path) -> None:
    """Run a script that has a function of this name, and nothing else of the pair."""
    import ejcache

    path = place / "other.py"
    path.write_text(OTHER.format(name=name))
    with ejcache.enable(str(place / "cache"), min_compile_seconds=0):
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})


def said(command: str, *arguments: str) -> Any:
    """What a command says to machines."""
    from cli_helpers import ejcache

    return ejcache(command, *arguments, "--json").json


def measure(pair: WhyPair, place: Path, *, stranger: bool) -> dict[str, Any]:
    """Kind, sentence and advice of each command about the last program of the pair's function."""
    place.mkdir(parents=True)
    os.environ["XDG_CACHE_HOME"] = str(place / "home")
    if stranger:
        run_other(pair.function, place)
    else:
        compile_program(pair, 0, place)
    compile_program(pair, 1, place)
    why = said("why", pair.function)["explanations"][0]
    report = said("report")
    functions = [
        {**each, "kind": group["kind"]}
        for group in report["causes"]
        for each in group["functions"]
        if each["name"] == why["name"]
    ]
    findings = [each for each in said("advise", "--all")["findings"] if each["function"] == pair.function]
    of_report = [each for each in report["findings"] if each["function"] == pair.function]
    return {"title": pair.title, "why": why, "report": functions, "advise": findings, "findings": of_report}


def main() -> None:
    """Measure twenty pairs of one program, and ten of strangers."""
    import jax

    place = Path(sys.argv[1])
    pairs = [pair for pair in PAIRS if not pair.is_alone]
    chosen = [pairs[n * len(pairs) // (COUNT + STRANGERS)] for n in range(COUNT + STRANGERS)]
    for number, pair in enumerate(chosen):
        before = {name: getattr(jax.config, name) for name in {**pair.config[0], **pair.config[1]}}
        try:
            answer = measure(pair, place / str(number), stranger=number % 3 == 2)
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
        print(json.dumps(answer | {"stranger": number % 3 == 2}), flush=True)


if __name__ == "__main__":
    main()
