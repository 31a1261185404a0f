"""absl's flags and app, and a configuration of ml_collections."""

import itertools

import jax
import jax.numpy as jnp
import ml_collections
from absl import app, flags, logging

import ejcache
from runs import outside

flags.DEFINE_string("workdir", str(outside.OUTPUT), "where results go")
flags.DEFINE_string("run_id", outside.RUN_ID, "of this run")


def get_config():
    config = ml_collections.ConfigDict({"rate": 0.1, "model": {"width": 16, "layers": 2, "scale": 0.5}})
    return config.lock()


def init(config, key):
    widths = [8, *[config.model.width] * config.model.layers]
    return [jax.random.normal(key, pair) * config.model.scale for pair in itertools.pairwise(widths)]


def make_step(config):
    def loss_of(params, x):
        for w in params:
            x = jnp.tanh(x @ w) * config.model.scale
        return (x**2).mean()

    @ejcache.ejit
    def step(params, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - config.rate * g, params, grads), loss

    return step


def main(argv):
    global LOSS
    config = get_config()
    params, step = init(config, jax.random.key(0)), make_step(config)
    for _ in range(3):
        params, LOSS = step(params, jnp.ones((4, 8)))
        logging.info("%s: %s in %s, job %s, %s", flags.FLAGS.run_id, LOSS, flags.FLAGS.workdir, outside.JOB, argv)


if __name__ == "__main__":
    app.run(main)
