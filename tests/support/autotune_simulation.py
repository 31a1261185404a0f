"""The simulated machine of `bench.noise` in tests: a tuner on it, and machines without noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from autotune_helpers import key

from bench import noise
from ejcache.autotune import Tuner
from ejcache.autotune.measure import tuning_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from ejcache.autotune.records.record import Record

X = jnp.ones(4)


class Machine(noise.Machine):
    """A machine on which each run takes a planted time, changed by noise."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have the tuner run candidates here."""
        for name, part in self.parts().items():
            patch.setattr(tuning_run, name, part)

    def tune(self, candidates: list[Any], tuner: Tuner | None = None, **options: Any) -> Record:
        """Tune; the first candidate is the default."""
        return (tuner or Tuner()).tune(
            lambda _: lambda x: x,
            (X,),
            {},
            key=key(),
            candidates=candidates,
            default=options.pop("default", candidates[0]),
            **options,
        )


def planted(times: Mapping[Any, float]) -> Machine:
    """A machine without noise on which each candidate takes the given seconds."""
    return Machine(times.__getitem__)
