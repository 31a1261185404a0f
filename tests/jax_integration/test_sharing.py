"""`jax_share_binary_between_hosts`: what the other processes do when the first one has nothing to hand over."""

from __future__ import annotations

import pytest
from jobs import run_job
from notice_boards import NoticeBoard

from ejcache.cache.reading import CacheReader
from ejcache.cache.stats import stats_of_process
from ejcache.jax_integration.compilation import Compilation, Placement
from ejcache.jax_integration.ranks.share_binary import receive, send
from ejcache.jax_integration.seam.coordination_service import CoordinationClient
from ejcache.keys.key import CacheKey
from ejcache.settings.resolve import resolve
from ejcache.stores.memory import MemoryStore

CALLBACKS = """
import json
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("x")), lambda i: np.arange(4, dtype=np.float32)[i])

def scaled_by(factor):
    def body(v):
        shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
        return jax.pure_callback(lambda w: np.asarray(w) * np.float32(factor), shape, v)
    return jax.jit(lambda v: jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(v))

print(json.dumps([scaled_by(factor)(x).addressable_data(0).tolist() for factor in (10, 100)]))
"""


def test_programs_that_differ_in_their_callback_alone_call_their_own(tmp_path):
    """They have one key; nothing is stored, so that the second gets what the first one shared."""
    _, said = run_job(CALLBACKS, places=tmp_path, sharing=True, env=lambda _: {"POD_FLOOR": "60"})
    assert said == [[[0, 10], [0, 100]], [[20, 30], [200, 300]]]


class Ranks:
    """Two processes' sharing over one coordination service; what the first one compiles cannot be serialised."""

    def __init__(self, *, say_after=60.0, **calls):
        self.board = NoticeBoard()
        self.policies = [CacheReader("memory://", open_store=MemoryStore) for _ in range(2)]
        self._calls = calls
        self._say_after = say_after

    @property
    def failures(self):
        return [int(stats_of_process(policy).errors) for policy in self.policies]

    def run(self, rank, compile_here):
        compilation = Compilation(
            key=CacheKey(name="jit_step", platform="cpu", components={}),
            settings=resolve(calls=self._calls),
            cache=self.policies[rank],
            module=None,
            placement=Placement(backend=None, devices=(), options=None),
            device_ids=(0, 1),
            ranks=(0, 1),
        )
        coordination = CoordinationClient(self.board, process=rank, processes=2, say_after=self._say_after)
        if rank == 0:
            return send(compilation, coordination, compile_here)
        return receive(compilation, coordination) or compile_here()


def test_what_cannot_be_serialised_is_withdrawn():
    """The others compile at once, for as long as they would wait, and only the first one has trouble to tell of."""
    ranks = Ranks()

    assert ranks.run(0, lambda: "first") == "first"
    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.failures == [1, 0]


def test_a_compilation_that_fails_is_withdrawn():
    """Its error is the first process's own, and the others see what they make of the program."""
    ranks = Ranks()

    def fail():
        raise RuntimeError("out of memory")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            ranks.run(0, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        ranks.run(1, fail)
    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.failures == [0, 0]


def test_others_wait_as_long_as_the_flag_says():
    """jax_share_binary_between_hosts_timeout_ms; JAX's default is 20 minutes."""
    ranks = Ranks(share_binary_timeout_ms=7)

    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.board.asked == [7]
    assert resolve().share_binary_timeout_ms == 20 * 60 * 1000


def test_a_long_wait_for_the_first_process_is_said(caplog):
    """After five seconds, here at once, a line says that the first process compiles this program, and the limit."""
    ranks = Ranks(share_binary_timeout_ms=7, say_after=0.001)

    assert ranks.run(1, lambda: "second") == "second"
    assert "waiting for the first process, which compiles jit_step: 0 s so far, at most 0 s" in caplog.text
