"""python -m bench.programs.report make PROGRAMS TEXTS | show: many start records and texts, or a page about them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.programs.memory import forget_peak, memory

_EACH = 500
"""Programs of a start."""
_FUNCTIONS = 100
_LAYERS = 24


def main() -> None:
    """Make the records and texts of this user's directory, or a page, and print a JSON object."""
    if sys.argv[1] == "make":
        answer: dict[str, Any] = {"characters": _make(int(sys.argv[2]), int(sys.argv[3]))}
    else:
        answer = _show()
    print(json.dumps(answer))


def _show() -> dict[str, Any]:
    """CPU seconds and memory of `ejcache report --html`, with the imports of the command."""
    forget_peak()
    from ejcache.cli.main import main as command

    # Called by hand, it left a page in the checkout.
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv = ["ejcache", "report", "--html", str(Path(scratch, "page.html"))]
        try:
            command()
        except SystemExit as exc:
            status = exc.code or 0
        else:
            status = 0
    return {"cpu": time.process_time(), "peak": memory("VmHWM"), "status": status}


def _make(programs: int, texts: int) -> int:
    from ejcache.history.host_log import remember_program
    from ejcache.journal.line import STORED, ProgramRecord, encode_line
    from ejcache.journal.recorder import START_LOG

    for first in range(0, programs, _EACH):
        began = 1_000.0 * (1 + first // _EACH)
        records = [
            ProgramRecord(
                name=f"jit_f{number % _FUNCTIONS}",
                time=began + number - first,
                url="/cache",
                key=f"key-{number}",
                reason="absent",
                outcome=STORED,
                compile_seconds=0.5,
                caller=f"/home/me/train.py:{number % _FUNCTIONS} in main",
                seconds={"traced": 0.1, "lowered": 0.1, "compiled": 0.5},
                components={"computation": f"digest{number}"},
                details={"defined": f"/home/me/train.py:{number % _FUNCTIONS} f", "weak": "", "committed": ""},
                signature=f"(tensor<{(number - first) // _FUNCTIONS + 4}x16xf32>) -> tensor<f32>",
            )
            for number in range(first, min(programs, first + _EACH))
        ]
        versions = {"jax": "1"}
        process = {"id": f"p{first}", "host": "host", "program": "train.py", "began": began, "versions": versions}
        START_LOG.append(encode_line(process, records))
    text = _text()
    for number in range(programs - texts, programs):  # the log keeps the last ones
        remember_program(f"digest{number}", text.replace("tensor<4x16xf32>", f"tensor<{number % 7 + 4}x16xf32>"))
    return len(text)


def _text() -> str:
    """The text of a gradient of layers, with its locations."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(layers: Any, x: Any) -> Any:
        for w in layers:
            x = jnp.tanh(x @ w)
        return x.sum()

    layers = [np.ones((16, 16), np.float32)] * _LAYERS
    return str(jax.jit(jax.grad(loss)).lower(layers, np.ones((4, 16), np.float32)).as_text(debug_info=True))


if __name__ == "__main__":
    main()
