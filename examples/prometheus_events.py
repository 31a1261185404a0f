"""Counters for Prometheus: programs and seconds by outcome, and failures of the storage.

pip install prometheus-client
python prometheus_events.py      # serves http://localhost:9400/metrics while it runs
"""

from collections import Counter

import jax
import jax.numpy as jnp

import ejcache
from ejcache.events import CacheTrouble, Event, ProgramCompiled, ProgramLoaded

NAMES = ("programs", "seconds", "saved_seconds", "trouble")


def count_with(add):
    """Count each event: `add(name, label, amount)` adds to a counter."""

    def tell(event: Event) -> None:
        if isinstance(event, CacheTrouble):
            add("trouble", event.kind, 1)
        elif isinstance(event, ProgramLoaded | ProgramCompiled):
            label = "hit" if isinstance(event, ProgramLoaded) else event.reason or event.outcome
            add("programs", label, 1)
            add("seconds", label, sum(event.seconds.values()))
            if isinstance(event, ProgramLoaded):
                add("saved_seconds", label, event.saved)

    return ejcache.on_event(tell)


if __name__ == "__main__":
    kept: Counter[tuple[str, str]] = Counter()
    try:
        import prometheus_client

        counters = {name: prometheus_client.Counter(f"ejcache_{name}", name, ["outcome"]) for name in NAMES}
        prometheus_client.start_http_server(9400)
    except ImportError:
        counters = {}

    def add(name: str, label: str, amount: float) -> None:
        """Add to Prometheus' counter where there is one, and to ours."""
        kept[name, label] += amount
        if name in counters:
            counters[name].labels(label).inc(amount)

    end = count_with(add)
    ejcache.enable(min_compile_seconds=0)
    jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((64, 64)))
    ejcache.active().close()
    end()
    for (name, label), amount in sorted(kept.items()):
        print(f'ejcache_{name}{{outcome="{label}"}} {amount:.3f}')
