"""Energies of molecules: each has another number of atoms and of bonds."""

import jax
import jax.numpy as jnp
import numpy as np


def message(params, nodes, senders, receivers):
    pairs = jnp.concatenate([nodes[senders], nodes[receivers]], axis=-1)
    edges = jax.nn.silu(pairs @ params["edge"])
    summed = jax.ops.segment_sum(edges, receivers, num_segments=nodes.shape[0])
    return nodes + jax.nn.silu(jnp.concatenate([nodes, summed], axis=-1) @ params["node"])


@jax.jit
def energy(params, nodes, senders, receivers):
    for layer in params["layers"]:
        nodes = message(layer, nodes, senders, receivers)
    return (nodes @ params["out"]).sum()


rng = np.random.default_rng(0)


def weights(*shape):
    return (0.1 * rng.normal(size=shape)).astype(np.float32)


params = {"layers": [{"edge": weights(64, 32), "node": weights(64, 32)} for _ in range(3)], "out": weights(32, 1)}
molecules = [(5, 8), (9, 16), (12, 22), (17, 34), (21, 40)]
for atoms, bonds in molecules:
    ends = rng.integers(0, atoms, (2, bonds)).astype(np.int32)
    value = energy(params, weights(atoms, 32), ends[0], ends[1])  # <-
    print(atoms, float(value))
