"""Compile and load times in TensorBoard: seconds of each program, and what the cache has saved so far.

pip install tensorboardX
python tensorboard_events.py && tensorboard --logdir runs
"""

import jax
import jax.numpy as jnp

import ejcache
from ejcache.events import Event, ProgramCompiled, ProgramLoaded


def log_to(writer):
    """Write each event as scalars; `writer` has the `add_scalar` of any SummaryWriter."""
    counted = {"step": 0, "saved": 0.0}

    def tell(event: Event) -> None:
        if isinstance(event, ProgramCompiled | ProgramLoaded):
            counted["step"] += 1
            counted["saved"] += event.saved if isinstance(event, ProgramLoaded) else 0.0
            what = "loaded" if isinstance(event, ProgramLoaded) else "compiled"
            writer.add_scalar(f"ejcache/{what}/{event.name}", sum(event.seconds.values()), counted["step"])
            writer.add_scalar("ejcache/saved", counted["saved"], counted["step"])

    return ejcache.on_event(tell)


class Printed:
    """Stands in where tensorboardX is not installed."""

    def add_scalar(self, name, value, step):
        """Print a scalar."""
        print(f"{step}: {name} = {value:.3f}")

    def close(self):
        """Nothing is open."""


if __name__ == "__main__":
    try:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter("runs/ejcache")
    except ImportError:
        writer = Printed()
    end = log_to(writer)
    ejcache.enable(min_compile_seconds=0)
    jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((64, 64)))
    ejcache.active().close()
    end()
    writer.close()
