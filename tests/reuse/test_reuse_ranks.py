"""Jobs of several processes: all ranks reuse a program or all trace it, whatever each of them sees."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from notice_boards import NoticeBoard
from pod import run_pod

from ejcache.jax_integration.ranks.agreement import RankAgreement
from ejcache.jax_integration.seam.coordination_service import CoordinationClient
from ejcache.reuse.votes import Vote

PROGRAM = """
import hashlib, json, os, time
import jax, jax.numpy as jnp, numpy as np
import ejcache
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

rank, size = jax.process_index(), jax.process_count()
if os.environ.get("LATE") == str(rank):
    time.sleep(float(os.environ["SECONDS"]))
traced = []
reuse = os.environ.get("REUSE", "yes") != "no" and ("word", os.environ.get("WORD"))
devices = np.array(jax.devices()).reshape(size, -1)
mesh = Mesh(devices, ("data", "model"))
data, model = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))
place = lambda array, sharding: jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

@ejcache.ejit(reuse_lowering=reuse)
def init(key):  # of each process alone
    traced.append("init")
    return jax.random.normal(key, (8, 8))

@ejcache.ejit(reuse_lowering=reuse, donate_argnums=0)
def step(state, x, rate):
    traced.append("step")
    if os.environ.get("INSIDE"):  # a program of all ranks, while this one is traced
        with jax.ensure_compile_time_eval():
            traced.append(float(jnp.sum(one).addressable_data(0)))
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(state["w"])
    return {"w": state["w"] - rate * gradient, "n": state["n"] + 1}, loss

one = place(np.ones(8, np.float32), NamedSharding(mesh, P(("data", "model"))))
w = np.asarray(init(jax.random.key(0)))
state = {"w": place(w, model), "n": 0}
for number in range(3):
    x = place(np.full((2 * size, 8), number, np.float32), data)
    state, loss = step(state, x, np.float32(0.1))
shards = [np.asarray(each.data).tobytes() for each in state["w"].addressable_shards]
print(json.dumps({"traced": traced, "bits": hashlib.sha256(b"".join(shards)).hexdigest(), "loss": float(loss)}))
"""


@pytest.fixture
def job(tmp_path):
    """Start the ranks of a job, and return what each printed."""
    program = tmp_path / "project" / "train.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)

    def run(processes=2, check=True, **environment):
        variables = {
            "EJCACHE_REUSE_FLOOR": "0", "EJCACHE_REUSE_CHECK_ONE_IN": "0", "XDG_CACHE_HOME": str(tmp_path / "home"),
            **{name: value for name, value in environment.items() if not callable(value)},
        }  # fmt: skip
        ranks = run_pod(
            program,
            processes=processes,
            devices=2,
            cache=lambda _: str(tmp_path / "cache"),
            env=lambda rank: {
                **variables,
                **{name: given for name, value in environment.items() if callable(value) and (given := value(rank))},
            },
        )
        for each in ranks:
            assert not check or each.returncode == 0, each.stderr
        return [json.loads(each.stdout.splitlines()[-1]) for each in ranks] if check else ranks

    return run


@pytest.mark.soak
@pytest.mark.parametrize("processes", [2, 4])
def test_the_third_start_of_a_job_traces_nothing(job, processes):
    """On no rank, and every bit is as without reuse: data in parallel, and a model that is divided."""
    plain = job(processes, REUSE="no")
    starts = [job(processes) for _ in range(3)]
    traced = [[rank["traced"] for rank in each] for each in (plain, *starts)]
    assert traced[0] == traced[1] == traced[2] != traced[3] == [[]] * processes
    for each in starts:
        assert [(rank["bits"], rank["loss"]) for rank in each] == [(rank["bits"], rank["loss"]) for rank in plain]


@pytest.mark.soak
def test_ranks_with_different_words(job):
    """A trace runs a program of all ranks: all trace, and nobody waits for ever."""
    for _ in range(2):
        traced = job(INSIDE="1")[0]["traced"]
    assert [rank["traced"] for rank in job(INSIDE="1")] == [[], []]
    said = job(INSIDE="1", WORD=str)  # another one on each rank, and no record
    assert [rank["traced"] for rank in said] == [traced] * 2
    said = job(INSIDE="1", WORD=lambda rank: str(rank) if rank else None)  # rank 0 has a record
    assert [rank["traced"] for rank in said] == [traced[1:], traced]
    assert len({rank["loss"] for rank in said}) == 1


@pytest.mark.soak
def test_a_rank_that_comes_late(job):
    """The others wait for it, and reuse with it."""
    for _ in range(2):
        job()
    assert [rank["traced"] for rank in job(LATE="1", SECONDS="4")] == [[], []]


# -- simulated ranks -------------------------------------------------------------------------------------------------

ONE = {"content": "a"}


def ranks_on(board, count, *, patience=60.0, present=None):
    """The agreements of the ranks of a job; those that are not `present` do not use ejcache."""
    return [
        RankAgreement(
            CoordinationClient(board, process=rank, processes=count),
            patience=patience,
            silent_timeout=0.004,
            grace=0.02,
        )
        for rank in (range(count) if present is None else present)
    ]


def cast(agreements, says, *, count=None):
    """What each rank does that votes so: a program is a yes, and None is a no."""
    count = len(agreements) if count is None else count

    def one(agreement):
        vote = Vote(agreement, "step", tuple(range(count)))
        program = says[agreement.rank]
        if program is None:
            vote.trace()
            return False
        return vote.all_reuse(program)

    with ThreadPoolExecutor(len(agreements)) as pool:
        return list(pool.map(one, agreements))


def test_the_draw_of_the_lowest_rank_is_everybodys():
    """64 ranks, again and again: all reuse, or all trace where the lowest one was drawn."""
    agreements = ranks_on(NoticeBoard(), 64)
    drawn = [number == 7 for number in range(10)]
    for each in drawn:
        assert cast(agreements, [None if each else ONE, *[ONE] * 63]) == [not each] * 64


@pytest.mark.parametrize(
    "says",
    [[ONE, ONE, None], [None, ONE, ONE], [ONE, {"content": "b"}, ONE], [None, None, None]],
)
def test_one_no_is_everybodys(says, caplog):
    """Also a program that differs is a no. Nothing is logged: to trace is no failure."""
    agreements = ranks_on(NoticeBoard(), 3)
    assert cast(agreements, says) == [False] * 3
    assert cast(agreements, [ONE] * 3) == [True] * 3
    assert not caplog.records


def test_a_known_no_waits_for_nobody():
    """Neither the rank that says it nor one that votes later has to wait for those that have not come."""
    board = NoticeBoard()
    agreements = ranks_on(board, 4)
    assert cast([agreements[0]], [None], count=4) == [False]
    assert board.asked == []
    assert cast([agreements[2]], [ONE] * 4, count=4) == [False]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_without_ejcache_makes_the_others_trace(absent):
    """It is waited for once, for the grace of the whole job."""
    board = NoticeBoard()
    others = ranks_on(board, 3, present=[rank for rank in range(3) if rank != absent])
    assert cast(others, [ONE] * 3, count=3) == [False] * 2
    board.asked.clear()
    assert cast(others, [ONE] * 3, count=3) == [False] * 2
    assert absent or max(board.asked) <= 1  # milliseconds, for the lowest one, which decides


@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_rank_makes_the_others_trace(dead):
    """After the patience, and from then on after the timeout of silent ranks."""
    board = NoticeBoard()
    agreements = ranks_on(board, 3, patience=0.01)
    alive = [each for each in agreements if each.rank != dead]
    assert cast(alive, [ONE] * 3, count=3) == [False] * 2
    board.asked.clear()
    assert cast(alive, [ONE] * 3, count=3) == [False] * 2
    # A dead rank that only comes late follows what was decided without it.
    assert cast([agreements[dead]], [ONE] * 3, count=3) == [False]
