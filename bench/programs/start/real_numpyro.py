"""NumPyro: the eight schools by NUTS, a predictive distribution, and a summary."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import summary
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.reparam import LocScaleReparam

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of samples."""
    return [partial(_main, size)]


def _schools(errors: Any, effects: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with (
        numpyro.plate("school", len(errors)),
        numpyro.handlers.reparam(config={"effect": LocScaleReparam(centered=0)}),
    ):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("observed", dist.Normal(effect, errors), obs=effects)


def _main(samples: int) -> Any:
    inference = MCMC(NUTS(_schools), num_warmup=samples, num_samples=samples, progress_bar=False)
    inference.run(jax.random.PRNGKey(0), ERRORS, effects=EFFECTS, extra_fields=("potential_energy",))
    drawn = inference.get_samples()
    predicted = Predictive(_schools, drawn)(jax.random.PRNGKey(1), ERRORS)
    energy = inference.get_extra_fields()["potential_energy"]
    said = summary(inference.get_samples(group_by_chain=True))
    return energy.mean(), predicted["observed"].mean(axis=0), said["mean"]["mean"]
