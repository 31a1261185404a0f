"""A configuration of attrs, with the run's own fields beside those of the model."""

import attrs
import jax
import jax.numpy as jnp

import ejcache
from runs import outside


@attrs.frozen
class Model:
    width: int = attrs.field(default=16, validator=attrs.validators.gt(0))
    scale: float = 0.5


@attrs.define
class Config:
    model: Model = attrs.field(factory=Model)
    rate: float = attrs.field(default=0.1, converter=float)
    run_id: str = outside.RUN_ID
    started: str = outside.STARTED


def make_step(config):
    @ejcache.ejit
    def step(w, x):
        def loss_of(w):
            return (jnp.tanh(x @ w) ** 2).sum() * config.model.scale / config.model.width

        loss, grad = jax.value_and_grad(loss_of)(w)
        return w - config.rate * grad, loss

    return step


config = Config(model=Model(width=12))
w, step = jnp.ones((8, config.model.width)), make_step(config)
for _ in range(3):
    w, LOSS = step(w, jnp.ones((4, 8)))
(outside.OUTPUT / f"{config.run_id}-{outside.JOB}").write_text(str(attrs.asdict(config)))
