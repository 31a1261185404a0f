"""Ctrl-C, and what other signal handlers raise, reaches the program wherever it comes while a key is made."""

from __future__ import annotations

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
import ejcache

class Interrupter:
    # Raises at the beginning of a function of ours, which is where Python runs the handlers of signals.
    def __init__(self, number):
        self.number, self.count = number, 0

    def __call__(self, frame, event, argument):
        if event == "call" and "lowering" in frame.f_code.co_filename and "ejcache" in frame.f_code.co_filename:
            self.count += 1
            if self.count == self.number:
                raise KeyboardInterrupt

ejcache.enable(sys.argv[1], min_compile_seconds=0)

def program(x, y):
    return jnp.clip(x, 0, 1).sum() + jax.jit(jnp.tanh)(y).sum() + jnp.linalg.cholesky(y).sum()

x, y = np.ones((3,), np.float32), np.eye(3, dtype=np.float32)
lowered = jax.jit(program).lower(x, y)
number, lost = 0, []
while True:
    number += 1
    interrupter = Interrupter(number)
    sys.setprofile(interrupter)
    try:
        found = lowered.compile()
    except KeyboardInterrupt:
        continue
    finally:
        sys.setprofile(None)
    if interrupter.count < number:
        break
    lost.append(number)
print(number > 20, lost, float(found(x, y)) == float(jax.jit(program)(x, y)))
"""


def test_an_interrupt_while_a_key_is_made(run_forked, tmp_path):
    """At the beginning of each function that makes the key, those that MLIR calls back among them."""
    assert run_forked(PROGRAM, str(tmp_path / "cache")).stdout == "True [] True\n"
