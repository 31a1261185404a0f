"""Equinox: the arrays of the model are arguments, and the rest of it is closed over."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import ejcache
from runs import outside


def main(seed=0, rate=1e-3):
    model = eqx.nn.MLP(8, 1, 16, 2, key=jax.random.key(seed))
    params, static = eqx.partition(model, eqx.is_array)
    tx = optax.adam(rate)

    @ejcache.ejit
    def step(params, opt_state, batch):
        def loss_of(params):
            return (jax.vmap(eqx.combine(params, static))(batch) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, loss

    opt_state, batch = tx.init(params), jnp.ones((4, 8))
    for _ in range(3):
        params, opt_state, loss = step(params, opt_state, batch)
    (outside.OUTPUT / "done").write_text(f"{outside.RUN_ID} {outside.STARTED} {outside.JOB} {loss}")
    return loss


LOSS = main()
