"""A process that makes keys of small programs for as long as it is asked, so that it has a history.

    key_histories.py plain|eventful DIRECTORY

A line of JSON describes a program; a line of JSON answers with its keys. The plain process lowers what it is asked
for and nothing else. The eventful one does unrelated work in between, uses the programs' helpers in other programs
first, and forgets what it has traced while it traces.

    program := {"helpers": [helper…], "body": [step…], "wrap": name in WRAPS, "shape": […], "dtype": name}
    helper  := {"name": text, "jitted": bool, "body": [step…]}
    step    := [name in STEPS] | [name in CONSTANTS, number] | ["call", index of a helper before this one]
"""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = ("sin", "tanh", "square", "add_sum", "relu", "softmax", "cumsum", "sort", "shared")
CONSTANTS = ("add", "multiply", "clip", "where")
WRAPS = ("none", "gradient", "scan", "while", "cond", "vmap", "remat")


def inlined(program: dict) -> str:
    """What the program computes, helpers written out: programs of different texts are different programs."""

    def steps(body: list, helpers: list) -> list:
        found: list = []
        for step in body:
            if step[0] == "call":
                found += steps(helpers[step[1]]["body"], helpers[: step[1]])
            else:
                found.append(step)
        return found

    return json.dumps([steps(program["body"], program["helpers"]), *(program[n] for n in ("wrap", "shape", "dtype"))])


class Programs:
    """Makes functions of descriptions; a helper of one description is one function, whichever program uses it."""

    def __init__(self, forget: Callable[[], None]) -> None:
        import jax
        import jax.numpy as jnp

        @jax.jit
        def shared(x):
            return jnp.where(x > 0, jnp.clip(x, 0, 5), 0.5 * x)

        self._forget = forget
        self._helpers: dict[str, Callable] = {}
        self._steps: dict[str, Callable] = {
            "sin": jnp.sin,
            "tanh": jnp.tanh,
            "square": lambda x: x * x,
            "add_sum": lambda x: x + jnp.sum(x),
            "relu": jax.nn.relu,
            "softmax": jax.nn.softmax,
            "cumsum": jnp.cumsum,
            "sort": jnp.sort,
            "shared": shared,
            "add": lambda x, k: x + jnp.asarray(k, x.dtype),
            "multiply": lambda x, k: x * jnp.asarray(k, x.dtype),
            "clip": lambda x, k: jnp.clip(x, -k, k),
            "where": lambda x, k: jnp.where(x > k, x, jnp.zeros_like(x)),
        }

    def helpers(self, described: list) -> list[Callable]:
        made: list[Callable] = []
        for number, helper in enumerate(described):
            text = json.dumps(described[: number + 1])
            if text not in self._helpers:
                self._helpers[text] = self._helper(helper, list(made))
            made.append(self._helpers[text])
        return made

    def program(self, described: dict) -> tuple[Any, tuple]:
        import jax
        import jax.numpy as jnp

        helpers = self.helpers(described["helpers"])

        def body(x):
            return self._run(described["body"], helpers, x)

        def program(x):
            match described["wrap"]:
                case "gradient":
                    return jax.value_and_grad(lambda y: body(y).sum())(x)
                case "scan":
                    return jax.lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]
                case "while":
                    return jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: body(c) + 1, x)
                case "cond":
                    return jax.lax.cond(x.sum() > 0, body, lambda y: y, x)
                case "vmap":
                    return jax.vmap(body)(jnp.stack([x, x + 1]))
                case "remat":
                    return jax.value_and_grad(lambda y: jax.checkpoint(body)(y).sum())(x)
                case _:
                    return body(x)

        shape = jax.ShapeDtypeStruct(tuple(described["shape"]), jnp.dtype(described["dtype"]))
        return jax.jit(program), (shape,)

    def _helper(self, described: dict, callees: list[Callable]) -> Callable:
        import jax

        def helper(x):
            return self._run(described["body"], callees, x)

        helper.__name__ = described["name"]
        return jax.jit(helper) if described["jitted"] else helper

    def _run(self, body: list, helpers: list[Callable], x: Any) -> Any:
        for name, *arguments in body:
            self._forget()
            x = helpers[arguments[0]](x) if name == "call" else self._steps[name](x, *arguments)
        return x


def serve(history: str, directory: str) -> None:
    import jax
    import key_probe

    import ejcache

    jax.devices()
    ejcache.enable(directory)
    key_probe.watch({"platform": ""})
    dice = random.Random(3)

    def forget() -> None:
        if history == "eventful" and dice.random() < 0.2:
            jax.clear_caches()

    programs = Programs(forget)
    for line in sys.stdin:
        described = json.loads(line)
        if history == "eventful":
            use_elsewhere(programs, described, dice)
        function, arguments = programs.program(described)
        lowered = function.lower(*arguments)
        try:
            lowered.compile()
        except key_probe.Stop as stop:
            keys = stop.args[0]
        text = lowered.as_text()
        print(json.dumps({**keys, "functions": text.count("func.func ")}), flush=True)


def use_elsewhere(programs: Programs, described: dict, dice: random.Random) -> None:
    """Trace what the program will need, in other programs, and what it will not."""
    import jax
    import jax.numpy as jnp

    shape = jax.ShapeDtypeStruct(tuple(described["shape"]), jnp.dtype(described["dtype"]))
    for helper in programs.helpers(described["helpers"]):
        if dice.random() < 0.5:
            jax.jit(lambda x, helper=helper: helper(helper(x)) + 1).lower(shape)
        if dice.random() < 0.3:
            jax.jit(jax.grad(lambda x, helper=helper: helper(x).sum())).lower(shape)
    if dice.random() < 0.5:
        jax.jit(lambda x: jnp.clip(jax.nn.relu(x), 0, dice.random())).lower(shape)


if __name__ == "__main__":
    serve(*sys.argv[1:])
