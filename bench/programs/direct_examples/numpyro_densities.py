"""NumPyro: log densities, potential energies, predictive samples, steps of SVI and of NUTS."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from numpyro.infer.util import initialize_model, log_density, potential_energy

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.linspace(-1, 1, 16, dtype=np.float32)
Y = 2 * X + 0.5
GROUPS = np.arange(16) % 4
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


def regression(x: Any, y: Any = None) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(slope * x + offset, sigma), obs=y)


def schools(errors: Any, effects: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("school", errors.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("observed", dist.Normal(effect, errors), obs=effects)


def logistic(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    features = jnp.stack([jnp.ones_like(x), x, x**2], -1)
    numpyro.sample("y", dist.Bernoulli(logits=features @ weights), obs=y)


def coin(data: Any) -> None:
    fairness = numpyro.sample("fairness", dist.Beta(10, 10))
    with numpyro.plate("flips", len(data)):
        numpyro.sample("flip", dist.Bernoulli(fairness), obs=data)


def coin_guide(data: Any) -> None:  # noqa: ARG001 (it takes what the model takes)
    alpha = numpyro.param("alpha", 15.0, constraint=dist.constraints.positive)
    beta = numpyro.param("beta", 15.0, constraint=dist.constraints.positive)
    numpyro.sample("fairness", dist.Beta(alpha, beta))


def mixture(data: Any) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample("means", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("data", data.shape[0]):
        numpyro.sample("obs", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, 1.0)), obs=data)


def walk(data: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def transition(level: Any, y: Any) -> Any:
        level = level + scale
        return level, dist.Normal(level, 1.0).log_prob(y)

    _, logs = jax.lax.scan(transition, 0.0, data)
    numpyro.factor("walk", logs.sum())


def density(x: Any, y: Any, params: Any) -> Any:
    return log_density(regression, (x,), {"y": y}, params)[0]


def energy(params: Any, x: Any, y: Any) -> Any:
    return potential_energy(logistic, (x, y), {}, params)


def sampled(key: Any, x: Any) -> Any:
    with handlers.seed(rng_seed=key), handlers.trace() as trace:
        regression(x)
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}


def predict(key: Any, samples: Any, x: Any) -> Any:
    return Predictive(regression, samples)(key, x)["obs"]


def elbo(params: Any, key: Any, data: Any) -> Any:
    return Trace_ELBO().loss(key, params, coin, coin_guide, data)


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    key = jax.random.key(0)
    point = {"slope": 1.0, "offset": 0.0, "sigma": 0.5}
    yield Example("numpyro: log density of a regression", density, (X, Y, point))
    yield Example("numpyro: its gradient", jax.grad(density, argnums=2), (X, Y, point))
    yield Example("numpyro: potential energy", jax.value_and_grad(energy), ({"weights": jnp.ones(3)}, X, (X > 0) * 1))
    yield Example("numpyro: sample a model's trace", sampled, (key, X))
    drawn = {name: jnp.full(5, value) for name, value in point.items()}
    yield Example("numpyro: predictive distribution", predict, (key, drawn, X))
    info = initialize_model(key, schools, model_args=(ERRORS, EFFECTS))
    yield Example("numpyro: potential function of eight schools", info.potential_fn, (info.param_info.z,))
    yield Example("numpyro: its gradient", jax.grad(info.potential_fn), (info.param_info.z,))
    yield Example("numpyro: constrain a point", info.postprocess_fn, (info.param_info.z,))
    flips = jnp.array([1.0] * 6 + [0.0] * 4)
    svi = SVI(coin, coin_guide, numpyro.optim.Adam(0.005), loss=Trace_ELBO())
    yield Example("numpyro: step of SVI", svi.update, (svi.init(key, flips), flips))
    yield Example("numpyro: evidence lower bound", elbo, ({"alpha": 2.0, "beta": 3.0}, key, flips))
    auto = SVI(regression, AutoNormal(regression), numpyro.optim.Adam(0.01), Trace_ELBO())
    yield Example("numpyro: step of SVI with AutoNormal", partial(auto.update, x=X, y=Y), (auto.init(key, X, Y),))
    low = SVI(mixture, AutoLowRankMultivariateNormal(mixture), numpyro.optim.Adam(0.01), Trace_ELBO())
    yield Example("numpyro: step of SVI on a mixture", low.update, (low.init(key, jnp.asarray(X)), jnp.asarray(X)))
    kernel = NUTS(regression, max_tree_depth=3)
    state = kernel.init(key, 5, None, (X,), {"y": Y})
    yield Example("numpyro: step of NUTS", lambda state, x, y: kernel.sample(state, (x,), {"y": y}), (state, X, Y))
