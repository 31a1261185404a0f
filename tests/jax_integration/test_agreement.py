"""One decision for all ranks, whichever is late, silent or gone; and nobody waits for the same rank again and again."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from notice_boards import NoticeBoard

from ejcache._version import __version__
from ejcache.jax_integration.ranks.agreement import LANGUAGE, RankAgreement
from ejcache.jax_integration.seam.coordination_service import CoordinationClient

LOAD = "load"
PRESENCE = json.dumps({"version": __version__, "language": LANGUAGE}).encode()


def rank_of(board, rank, *, patience=0.01, present=range(12), **options):
    """One process's agreement, with short waits, in a job of which these ranks have enabled ejcache."""
    for each in present:
        with contextlib.suppress(RuntimeError):
            board.key_value_set_bytes(f"ejcache/present/{each}", PRESENCE)
    client = CoordinationClient(board, process=rank, processes=12, **options)
    return RankAgreement(client, patience=patience, silent_timeout=0.004, grace=0.02)


def decide(ranks, topic, *, participants, loaded=True):
    """What these ranks make of a topic, each in a thread of its own."""

    def one(rank):
        return rank.decide(
            topic,
            participants=participants,
            mine={"loaded": loaded},
            decide=lambda said: LOAD if len(said) == len(participants) else "compile",
        )

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


@pytest.mark.parametrize("later", [(0, 2), (2, 0)])
def test_a_rank_that_gave_up_speaks_for_those_that_come_later(later):
    """Rank 1 gives the lowest up and compiles; so do the others, though each of them could load."""
    board = NoticeBoard()
    ranks = [rank_of(board, rank, patience=0.01) for rank in range(3)]

    assert [decide([ranks[rank]], "t", participants=(0, 1, 2)) for rank in (1, *later)] == [[None]] * 3


def test_a_decision_that_comes_while_a_rank_gives_up_is_everybodys():
    """Of the two one stands, and it is the one that both go by."""

    class Slow(NoticeBoard):
        def key_value_set_bytes(self, name, value):
            if value == b"null":
                lowest.start()
                lowest.join()
            super().key_value_set_bytes(name, value)

    board, decisions = Slow(), []
    ranks = [rank_of(board, rank, patience=0.001) for rank in range(2)]
    lowest = threading.Thread(target=lambda: decisions.extend(decide(ranks[:1], "t", participants=(0, 1))))
    decisions += decide(ranks[1:], "t", participants=(0, 1))

    assert decisions == [LOAD, LOAD]


def test_a_silent_lowest_rank_costs_the_others_one_long_wait():
    """It has no cache: from the second program on hardly anybody waits for it."""
    board = NoticeBoard()
    rank = rank_of(board, 1, patience=0.01)

    assert [decide([rank], f"t{n}", participants=(0, 1)) for n in range(3)] == [[None]] * 3
    assert board.asked == [10, 4, 4]


def test_many_silent_ranks_cost_no_more_than_one():
    """The patience is of all together, at the first program and at the next."""
    board = NoticeBoard()
    rank = rank_of(board, 0, patience=0.01)
    decide([rank], "t1", participants=tuple(range(12)))
    assert sum(board.asked) <= 10
    board.asked.clear()

    decide([rank], "t2", participants=tuple(range(12)))
    assert sum(board.asked) <= 4


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_was_late_once_takes_part_again(late):
    """The others find that it came to the last occasion after all, and have their full patience again."""
    board = NoticeBoard()
    ranks = [rank_of(board, rank, patience=60.0) for rank in range(2)]
    board.hurries = True
    first = decide([ranks[1 - late]], "t1", participants=(0, 1)) + decide([ranks[late]], "t1", participants=(0, 1))
    assert LOAD not in first
    board.hurries = False
    board.asked.clear()

    assert decide(ranks, "t2", participants=(0, 1)) == [LOAD, LOAD]
    assert min(board.asked) > 1_000


def test_what_was_said_in_time_is_heard_though_another_rank_is_silent():
    """The lowest asks for all notes at once when its time is up."""
    board, heard = NoticeBoard(), []
    board.key_value_set_bytes("t/3", b'{"loaded": true}')
    rank = rank_of(board, 0, patience=0.001)
    rank.decide("t", participants=(0, 1, 2, 3), mine={"loaded": True}, decide=heard.append)

    assert [sorted(said) for said in heard] == [[0, 3]]


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (0, "rank 1, which has not come to jit_step yet: 5 s so far, at most 58 s"),
        (1, "rank 0, which decides whether the ranks load or compile jit_step: 5 s so far, at most 60 s"),
    ],
)
def test_a_long_wait_for_another_rank_is_said(caplog, rank, said):
    """After five seconds a line names the rank that is waited for, the program and the limit."""

    class Silent(NoticeBoard):
        def blocking_key_value_get_bytes(self, name, milliseconds):
            raise RuntimeError("DEADLINE_EXCEEDED")

    waiting = rank_of(Silent(), rank, patience=60.0)
    waiting.decide("t", participants=(0, 1), mine={}, decide=len, about="jit_step")
    (line,) = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
    assert line == f"ejcache: waiting for {said}"


def test_a_short_wait_for_another_rank_is_silent(caplog):
    """A value that comes within the silent time is returned without a line."""
    board = NoticeBoard()
    client = CoordinationClient(board)
    client.set_once("t", b"value")
    assert client.get("t", timeout=60.0, what="rank 1") == b"value"
    assert "waiting for" not in caplog.text
    assert board.asked == [5_000]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_not_enabled_ejcache_is_waited_for_once(rank, caplog):
    """For the grace of the whole job, and then never again; a line names it. When it comes, it takes part."""
    board = NoticeBoard()
    alone = rank_of(board, rank, present=[rank], patience=60.0)
    assert [decide([alone], f"t{n}", participants=(0, 1)) for n in range(3)] == [[None if rank else "compile"]] * 3
    assert board.asked[0] <= 20
    assert max(board.asked[1:], default=0) <= 1
    assert f"rank {1 - rank} has not enabled ejcache" in caplog.text
    late = rank_of(board, 1 - rank, patience=60.0)
    board.asked.clear()
    assert decide([alone, late], "t4", participants=(0, 1)) == [LOAD, LOAD]
    assert min(board.asked) > 1_000


@pytest.mark.parametrize("said", [b'"0.0.9"', b'{"version": "0.0.9", "language": 1}', b"[3]"])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_two_versions_compile_at_once(caplog, rank, said):
    """Neither waits for the other, whichever is the lowest, and one plain line says which rank has which version."""
    board = NoticeBoard()
    board.key_value_set_bytes(f"ejcache/present/{1 - rank}", said)
    ours = rank_of(board, rank, patience=60.0)
    assert [decide([ours], f"t{n}", participants=(0, 1)) for n in range(2)] == [[None]] * 2
    assert board.asked == []
    # The other one asks for what this one says, and for the decision.
    assert dict(board.key_value_dir_get_bytes("t0")) == {f"t0/{rank}": b"{}", "t0/decision": b"null"}
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"rank {1 - rank} has another version of ejcache" in line
    assert "install one version on all hosts" in line


def test_what_a_rank_cannot_have_said_is_no_decision(caplog):
    """The others hear at once that there is none, and the line is a sentence and not the text of a KeyError."""
    board = NoticeBoard()
    board.key_value_set_bytes("t/1", b"{}")
    lowest = rank_of(board, 0, patience=60.0)
    mine = {"loaded": True}
    found = lowest.decide("t", participants=(0, 1), mine=mine, decide=lambda said: [v["loaded"] for v in said.values()])
    assert found is None
    assert dict(board.key_value_dir_get_bytes("t"))["t/decision"] == b"null"
    assert "is not understood here, so all of them compile (KeyError: 'loaded')" in caplog.text


def test_a_second_job_of_a_process_has_an_agreement_of_its_own():
    """JAX may leave a job and begin another one; a second session of ejcache in one job goes on counting topics."""
    board, other = NoticeBoard(), NoticeBoard()
    first = rank_of(board, 0)
    assert first.belongs_to(CoordinationClient(board))
    assert not first.belongs_to(CoordinationClient(other))


def test_without_the_service_all_compile():
    """And no error in the program."""

    class Gone:
        def __getattr__(self, name):
            raise RuntimeError("UNAVAILABLE")

    ranks = [rank_of(Gone(), rank, patience=0.001) for rank in range(2)]
    assert decide(ranks, "t", participants=(0, 1)) == [None, None]
