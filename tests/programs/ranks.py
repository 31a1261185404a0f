"""What ranks do alone, together, in pairs, and on permuted meshes; every value is checked against NumPy's.

Prints `KEYS`, the keys of what was compiled, by program, and `DONE`.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler as jax_compiler
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

rank, size = jax.process_index(), jax.process_count()
here, there = jax.local_devices(), sorted(jax.devices(), key=lambda device: device.id)
each = len(here)
keys: dict[str, list[str]] = {}
doing = ""
make_key = jax_compiler._get_cache_key


def get_cache_key(*arguments, **options):
    key = make_key(*arguments, **options)
    keys.setdefault(doing, []).append(str(key))
    return key


jax_compiler._get_cache_key = get_cache_key


def run(name, devices, data, *, order=None):
    """Each shard times its place on the mesh, plus the sum of all shards: wrong for every other order of devices."""
    global doing
    doing = name
    mesh = Mesh(np.array([devices[i] for i in order or range(len(devices))]), ("x",))
    placed = NamedSharding(mesh, P("x"))

    def turned(x):
        place = jax.lax.axis_index("x").astype(x.dtype)
        ahead = [(i, (i + 1) % mesh.size) for i in range(mesh.size)]
        return jax.lax.ppermute(x, "x", ahead) * (place + 1) + jax.lax.psum(jnp.sum(x), "x")

    program = jax.jit(jax.shard_map(turned, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    array = jax.make_array_from_callback(data.shape, placed, lambda index: data[index])
    result = program(array)
    blocks = data.reshape(mesh.size, -1)
    want = (np.roll(blocks, 1, axis=0) * np.arange(1, mesh.size + 1)[:, None] + data.sum()).reshape(data.shape)
    assert result.sharding.device_set == set(mesh.devices.flat), name
    shards = result.addressable_shards
    assert len(shards) == sum(device in here for device in mesh.devices.flat), name
    for shard in shards:
        np.testing.assert_allclose(
            np.asarray(shard.data), want[shard.index], rtol=1e-5, err_msg=f"{name} on rank {rank}"
        )
        assert shard.device == mesh.devices.flat[shard.index[0].start // blocks.shape[1]], name
    doing = ""


def run_alone(name, device, data):
    global doing
    doing = name
    result = jax.jit(lambda x: jnp.cumsum(x) - jnp.max(x))(jax.device_put(data, SingleDeviceSharding(device)))
    assert result.devices() == {device}, name
    np.testing.assert_allclose(np.asarray(result), np.cumsum(data) - data.max(), rtol=1e-5, err_msg=name)
    doing = ""


def numbers(count, seed):
    return np.random.default_rng(seed).random(count, dtype=np.float32)


run_alone("alone", here[-1], numbers(6, rank))
run("own devices", here, numbers(4 * each, rank))
run("own devices, permuted", here, numbers(4 * each, rank + 50), order=list(reversed(range(each))))
everybody = 4 * len(there)
run("everybody", there, numbers(everybody, 7))
run("everybody, backwards", there, numbers(everybody, 8), order=list(reversed(range(len(there)))))
interleaved = [*range(0, len(there), 2), *range(1, len(there), 2)]
run("everybody, interleaved", there, numbers(everybody, 9), order=interleaved)
run("everybody", there, numbers(everybody, 10))
run("first of each", there[::each], numbers(4 * size, 11))
run("last of each", there[each - 1 :: each], numbers(4 * size, 12))
if size == 4:
    partners = [device for device in there if device.process_index // 2 == rank // 2]
    run("pairs of ranks", partners, numbers(4 * len(partners), 20 + rank // 2))
print("KEYS", json.dumps(keys))
print("DONE")
