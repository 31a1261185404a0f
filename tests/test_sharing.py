"""`jax_share_binary_between_hosts`: what the other processes do when the first one has nothing to hand over."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import ROOT
from notice_boards import NoticeBoard

from ejcache.jaxside import seam
from ejcache.jaxside.request import Request, Target
from ejcache.jaxside.sharing import Sharing
from ejcache.settings import resolve

sys.path.insert(0, str(ROOT / "tools"))

from pod import run_pod

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
    ranks = run_pod(
        CALLBACKS,
        cache=lambda rank: str(tmp_path / str(rank)),
        env=lambda _: {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "1", "POD_FLOOR": "60"},
    )

    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    assert json.loads(ranks[0].stdout.splitlines()[-1]) == [[0, 10], [0, 100]]
    assert json.loads(ranks[1].stdout.splitlines()[-1]) == [[20, 30], [200, 300]]


REQUEST = Request(key="key", module=None, module_name="jit_step", target=Target(backend=None, devices=(), options=None))


class Ranks:
    """Two processes' sharing over one board; what the first compiles cannot be serialised."""

    def __init__(self, monkeypatch, **calls):
        self.board = NoticeBoard()
        self.troubles = []
        self._monkeypatch = monkeypatch
        self._sharing = [
            Sharing(settings=lambda: resolve(calls=calls), trouble=lambda doing, _: self.troubles.append(doing))
            for _ in range(2)
        ]

    def run(self, rank, compile_here):
        self._monkeypatch.setattr(seam, "process_index", lambda: rank)
        sharing = self._sharing[rank]
        return sharing.again(REQUEST) or sharing.run(
            REQUEST, client=self.board, first_process=0, compile_here=compile_here, received=lambda *_: None
        )


def test_what_cannot_be_serialised_is_withdrawn(monkeypatch):
    """The others compile at once, for as long as they would wait, and only the first one has trouble to tell of."""
    ranks = Ranks(monkeypatch)

    assert ranks.run(0, lambda: "first") == "first"
    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.troubles == ["hand an executable to the other processes"]


def test_a_compilation_that_fails_is_withdrawn(monkeypatch):
    """Its error is the first process's own, and the others see what they make of the program."""
    ranks = Ranks(monkeypatch)

    def fail():
        raise RuntimeError("out of memory")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            ranks.run(0, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        ranks.run(1, fail)
    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.run(1, fail) == "second", "what was compiled here is kept as what was shared"
    assert ranks.troubles == []


def test_others_wait_as_long_as_the_flag_says(monkeypatch):
    """jax_share_binary_between_hosts_timeout_ms; JAX's default is 20 minutes."""
    ranks = Ranks(monkeypatch, share_binary_timeout_ms=7)

    assert ranks.run(1, lambda: "second") == "second"
    assert ranks.board.asked == [7]
    assert resolve().share_binary_timeout_ms == 20 * 60 * 1000
