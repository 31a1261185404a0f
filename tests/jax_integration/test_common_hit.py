"""What the ranks of a program load: one candidate that all of them have, found out in at most two exchanges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from notice_boards import NoticeBoard

from ejcache.cache.reasons import Miss
from ejcache.jax_integration.compilation import Compilation, LoadedExecutable
from ejcache.jax_integration.no_compile_blocks import forbid_compile
from ejcache.jax_integration.ranks.agreement import RankAgreement
from ejcache.jax_integration.ranks.common_hit import agree
from ejcache.jax_integration.seam.coordination_service import CoordinationClient
from ejcache.keys.key import CacheKey


class Rank:
    """One process of a job, which can load the candidates of these numbers."""

    def __init__(self, board, rank, has, *, processes, name="step", patience=60.0, forbids=False):
        self.agreement = RankAgreement(
            CoordinationClient(board, process=rank, processes=processes), patience=patience, grace=patience
        )
        self.has, self.forbids, self.tried = has, forbids, []
        self.compilation = Compilation(
            key=CacheKey("jit_step", "cpu", {"computation": name}),
            settings=None,
            cache=SimpleNamespace(url=f"gs://bucket-{rank // 2}", report_failure=None),
            module=None,
            placement=None,
            device_ids=(0, 1),
            ranks=tuple(range(processes)),
        )

    def load(self, number):
        self.tried.append(number)
        return LoadedExecutable(None, "", None, b"", 0.0, candidate=number) if number in self.has else None

    def run(self):
        """The number of the candidate that this rank uses, or why it compiles."""
        found = next((self.load(number) for number in range(3) if number in self.has), None)
        self.compilation.miss, self.tried = Miss.CORRUPT, []
        if self.forbids:
            with forbid_compile():
                found = agree(self.compilation, self.agreement, found, load=self.load)
        else:
            found = agree(self.compilation, self.agreement, found, load=self.load)
        return self.compilation.miss if found is None else found.candidate


def job(*has, **options):
    """What the ranks of a job do, and in how many exchanges they have found that out."""
    board = NoticeBoard()
    ranks = [Rank(board, rank, each, processes=len(has), **options) for rank, each in enumerate(has)]
    with ThreadPoolExecutor(len(ranks)) as pool:
        done = list(pool.map(Rank.run, ranks))
    names = [name for name, _ in board.key_value_dir_get_bytes("ejcache")]
    return ranks, done, sum(name.endswith("/decision") for name in names)


@pytest.mark.parametrize(
    ("has", "expected", "exchanges"),
    [
        # the same everywhere
        (({0}, {0}), [0, 0], 1),
        (({0, 1}, {0}, {0, 2}), [0, 0, 0], 1),
        (({2}, {2}), [2, 2], 1),
        # a damaged optimised entry and a good plain one: the others have a plain one, too
        (({0, 1}, {1}), [1, 1], 2),
        (({0, 2}, {1, 2}, {2}), [2, 2, 2], 2),
        # or have none
        (({0}, {1}), [Miss.DISAGREED, Miss.CORRUPT], 2),
        (({0, 2}, {0, 1}, {1}), [Miss.DISAGREED, Miss.DISAGREED, Miss.CORRUPT], 2),
        # one rank has nothing
        (({0}, set()), [Miss.DISAGREED, Miss.CORRUPT], 1),
        (({1}, set()), [Miss.CORRUPT, Miss.CORRUPT], 1),
        ((set(), set()), [Miss.CORRUPT, Miss.CORRUPT], 1),
    ],
)
def test_all_ranks_use_one_candidate_or_all_compile(has, expected, exchanges):
    """The reason of a miss is that of the program's own key."""
    ranks, done, found = job(*has)
    assert (done, found) == (expected, exchanges)
    assert all(len(rank.tried) <= 1 for rank in ranks)


def test_the_ranks_know_who_stores_and_who_forbids():
    """Each storage domain has a first rank; one rank that forbids to compile forbids it to all."""
    board = NoticeBoard()
    ranks = [Rank(board, rank, set(), processes=4, forbids=rank == 2) for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Rank.run, ranks))
    assert [rank.compilation.publisher for rank in ranks] == [0, 1, 0, 1]
    assert [rank.compilation.forbidden_on for rank in ranks] == [(2,)] * 4


def test_ranks_with_other_keys_compile():
    """Although each has loaded its own."""
    board = NoticeBoard()
    ranks = [Rank(board, rank, {0}, processes=2, name=f"program {rank}") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(Rank.run, ranks)) == [Miss.DISAGREED] * 2
    assert all(rank.compilation.is_drifted for rank in ranks)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_does_not_come_has_the_others_compile(silent):
    """After the time that a rank is waited for, and without a second exchange."""
    board = NoticeBoard()
    ranks = [Rank(board, rank, {1}, processes=2, patience=0.01) for rank in range(2)]
    assert ranks[1 - silent].run() is Miss.CORRUPT
    assert ranks[1 - silent].tried == []


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_ends_between_the_exchanges_has_the_others_compile(silent):
    """The second exchange is waited for no longer than the first."""

    class EndedError(RuntimeError):
        pass

    board = NoticeBoard()
    ranks = [Rank(board, rank, has, processes=2, patience=0.5) for rank, has in enumerate(({0, 1}, {1}))]
    confirm = ranks[silent].agreement.decide

    def decide(topic, **given):
        if topic.endswith("confirmed"):
            raise EndedError
        return confirm(topic, **given)

    ranks[silent].agreement.decide = decide
    with ThreadPoolExecutor(2) as pool:
        left, right = (pool.submit(rank.run) for rank in ranks)
        done = [left, right]
        assert done[1 - silent].result() in {Miss.DISAGREED, Miss.CORRUPT}
        assert isinstance(done[silent].exception(), EndedError)
