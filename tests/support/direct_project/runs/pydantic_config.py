"""A configuration of pydantic, with the run's own fields beside those of the model."""

import jax
import jax.numpy as jnp
import pydantic

import ejcache
from runs import outside


class Model(pydantic.BaseModel):
    width: pydantic.PositiveInt = 16
    scale: float = 0.5


class Config(pydantic.BaseModel):
    model: Model = Model()
    rate: float = pydantic.Field(default=0.1, gt=0)
    run_id: str = outside.RUN_ID
    output: str = str(outside.OUTPUT)
    job: str = outside.JOB

    @pydantic.field_validator("rate")
    @classmethod
    def small(cls, value):
        assert value < 1
        return value


config = Config(model={"width": 12})


@ejcache.ejit
def step(w, x):
    def loss_of(w):
        return (jnp.tanh(x @ w) ** 2).sum() * config.model.scale / config.model.width

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - config.rate * grad, loss


w = jnp.ones((8, config.model.width))
for _ in range(3):
    w, LOSS = step(w, jnp.ones((4, 8)))
(outside.OUTPUT / "config.json").write_text(config.model_dump_json() + outside.STARTED)
