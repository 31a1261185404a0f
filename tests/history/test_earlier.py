"""Which earlier program is the nearest: the same as if every text had been read, and few are."""

from __future__ import annotations

import itertools
import random

import pytest

from ejcache.history.causes import cause
from ejcache.history.earlier import Earlier, Texts
from ejcache.journal.line import STORED, ProgramRecord

OPERATIONS = ("tanh", "sine", "cosine", "negate", "abs", "exponential")
SIGNATURES = ("(tensor<4xf32>) -> tensor<f32>", "(tensor<8xf32>) -> tensor<f32>", "(tensor<4xf32>, i32) -> i32")
DETAILS = {"defined": "/home/me/train.py:3 step", "weak": "", "committed": ""}


def text(operations):
    lines = [f"    %{n} = stablehlo.{name} %arg0 : tensor<4xf32>" for n, name in enumerate(operations)]
    main = "  func.func public @main(%arg0: tensor<4xf32>) -> tensor<f32> {"
    return "\n".join(["module @jit_step {", main, *lines, "    return %0 : tensor<4xf32>", "  }", "}"])


def program(number, digest, signature, jaxlib):
    return ProgramRecord(
        name="jit_step",
        time=10.0 * number,
        url="/cache",
        key=f"key-{number}",
        reason="absent",
        outcome=STORED,
        compile_seconds=1.0,
        components={"computation": digest, "jaxlib": jaxlib},
        details=DETAILS,
        signature=signature,
    )


class Counting(Texts):
    """Texts that note which of them are read."""

    def __init__(self, known):
        super().__init__(lambda wanted: {each: known[each] for each in wanted if each in known})
        self.asked = set()

    def read(self, program):
        self.asked.add(program.key)
        return super().read(program)


@pytest.mark.parametrize("seed", range(40))
def test_the_nearest_is_that_of_all_texts(seed):
    """Of programs with any signatures, versions and texts, some of which nobody knows."""
    chance = random.Random(seed)
    known, programs = {}, []
    for number in range(1, chance.randrange(3, 13)):
        digest = f"digest-{chance.randrange(8)}"
        if chance.random() < 0.8:
            known.setdefault(digest, text(chance.choices(OPERATIONS, k=chance.randrange(3, 9))))
        programs.append(program(number, digest, chance.choice(SIGNATURES), chance.choice("ab")))
    known.setdefault("mine", text(chance.choices(OPERATIONS, k=6)))
    last = program(50, chance.choice(["mine", "digest-3"]), SIGNATURES[0], "a")
    texts = Counting(known)
    found, _ = Earlier([*programs, last], texts).of_function(last)
    ours = texts.read(last)

    def apart(other):
        far = float(other.components["jaxlib"] != "a")
        one, two = (set(each.signature.split(", ")) for each in (last, other))
        far += 2.0 * (1.0 - len(one & two) / max(len(one), len(two)))
        if other.components["computation"] != last.components["computation"]:
            its = texts.read(other)
            far += 4.0 * (1.0 - (its.likeness(ours) if its is not None and ours is not None else 0.5))
        return far, -other.time

    assert found[0] is min(programs, key=apart)
    assert sorted(each.key for each in found) == sorted(each.key for each in programs)


def test_no_text_is_read_that_cannot_be_nearer():
    """The latest program does nearly the same: what else is there has another version, or is older."""
    known = {f"digest-{n}": text(["tanh"] * 9 + ["sine"] * (n % 2)) for n in range(12)}
    programs = [program(n, f"digest-{n}", SIGNATURES[0], "b" if n < 6 else "a") for n in range(1, 12)]
    texts = Counting(known)
    last = program(50, "digest-0", SIGNATURES[0], "a")
    found, _ = Earlier(programs, texts).of_function(last)
    assert found[0].key == "key-10"
    assert texts.asked == {"key-50", "key-11", "key-10"}


def test_starts_that_repeat_each_other_are_compared_as_any_other():
    """What is remembered of records that say the same is right for programs that others came between."""
    chance = random.Random(0)
    programs = [
        program(n, f"digest-{n % 17}", chance.choice(SIGNATURES), chance.choice("ab"))._replace(
            details=DETAILS | {"weak": chance.choice(["", "x"]), "jaxlib": chance.choice(["0.10", "0.11"])}
        )
        for n in range(1, 80)
    ]
    together = Earlier(programs, Texts.none())
    for each in itertools.chain(programs, reversed(programs)):
        alone = Earlier(programs, Texts.none())
        assert together.of_function(each) == alone.of_function(each)
        assert cause(each, together) == cause(each, alone)
