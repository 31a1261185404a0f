"""Which earlier program is the nearest: the same as if every text had been read, and few are."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from ejcache.history.causes import cause
from ejcache.history.known_texts import Texts
from ejcache.history.nearest_program import Earlier
from ejcache.journal.appended_log import AppendedLog
from ejcache.journal.line import HIT, STORED, ProgramRecord
from ejcache.journal.start_records import Process, StartRecord

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


def starts(*programs, of="train.py"):
    """A start for each of these."""
    return [StartRecord(Process(id=each.key, program=of, began=each.time - 1), [each]) for each in programs]


@pytest.mark.parametrize("seed", range(40))
def test_the_nearest_is_that_of_all_texts(seed):
    """Of programs with any signatures, versions and texts, some of which nobody knows, of the last five starts."""
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
    found = Earlier(starts(*programs, last), texts).of_function(last).programs
    ours = texts.read(last)

    def apart(other):
        far = float(other.components["jaxlib"] != "a") + (0.0 if other.signature == last.signature else 1.0)
        if other.components["computation"] != last.components["computation"]:
            its = texts.read(other)
            far += its.apart(ours) if its is not None and ours is not None else 3.0
        return far, -other.time

    assert found[0] is min(programs[-5:], key=apart)
    assert sorted(each.key for each in found) == sorted(each.key for each in programs[-5:])


def test_no_text_is_read_that_cannot_be_nearer():
    """The latest program does nearly the same: what else is there has another version."""
    known = {f"digest-{n}": text(["tanh"] * 9 + ["sine"] * (n % 2)) for n in range(12)}
    programs = [program(n, f"digest-{n}", SIGNATURES[0], "b" if n < 11 else "a") for n in range(7, 12)]
    texts = Counting(known)
    last = program(50, "digest-0", SIGNATURES[0], "a")
    found = Earlier(starts(*programs, last), texts).of_function(last).programs
    assert found[0].key == "key-11"
    assert texts.asked == {"key-50", "key-11"}


def test_a_sibling_is_for_a_first_start_alone():
    """What the same process compiled before says nothing of why an earlier start did not have the program."""
    first, second = (program(n, f"digest-{n}", SIGNATURES[0], "a") for n in (1, 2))
    record = StartRecord(Process(id="one", program="train.py", began=1.0), [first, second])
    found = Earlier([record], Texts.none()).of_function(second)
    assert ([each.key for each in found.programs], found.is_sibling, found.began) == (["key-1"], True, None)
    before = program(0, "digest-9", SIGNATURES[1], "b")
    found = Earlier([*starts(before), record], Texts.none()).of_function(second)
    assert ([each.key for each in found.programs], found.is_sibling) == (["key-0"], False)


def test_what_an_earlier_start_loaded_counts():
    """The last start loaded a program that another one had compiled: that is what a change is told against."""
    one, two, last = (program(n, f"digest-{n}", SIGNATURES[0], "a") for n in (1, 2, 9))
    loaded = one._replace(time=50.0, outcome=HIT, reason="", components={}, details={}, signature="")
    records = [*starts(one, two), *starts(loaded, of="train.py"), *starts(last._replace(time=90.0))]
    records[2] = records[2]._replace(process=records[2].process._replace(id="loads"))
    found = Earlier(records, Texts.none()).of_function(last._replace(time=90.0))
    assert (found.programs[0].key, found.began) == ("key-1", 49.0)


def test_of_other_scripts_only_without_one_of_the_same():
    mine, theirs, last = (program(n, f"digest-{n}", SIGNATURES[0], "a") for n in (1, 2, 9))
    others = starts(theirs, of="other.py")
    assert Earlier([*starts(mine, last), *others], Texts.none()).of_function(last).programs[0].key == "key-1"
    assert Earlier([*starts(last), *others], Texts.none()).of_function(last).programs[0].key == "key-2"


def test_code_that_changed_beside_a_version():
    """Both are said where nobody has the texts: the version alone would send the reader to the wrong place."""
    before, after = (program(number, f"digest-{number}", SIGNATURES[0], "ab"[number]) for number in range(2))
    why = cause(after, Earlier(starts(before, after), Texts.none()))
    assert [each.kind for each in why.differences] == ["jaxlib", "code"]


def test_records_that_were_cut():
    """No sibling stands in for an earlier start that nobody remembers: it is said since when there are records."""
    first, second = (program(n, f"digest-{n}", SIGNATURES[0], "a") for n in (1, 2))
    record = StartRecord(Process(id="one", program="train.py", began=1.0), [first, second])
    earlier = Earlier([record], Texts.none(), lost_before=1.0)
    assert earlier.of_function(second).programs == ()
    assert re.search(r"nothing earlier is recorded \(since 19[67]\d-", cause(second, earlier).sentence)


def test_a_log_knows_that_it_was_cut():
    """It is whole until the file that was moved aside is replaced by the next one."""
    log = AppendedLog("cut", limit=100)
    log.append(b"x" * 150)
    assert not log.is_cut()
    log.append(b"y" * 150)
    assert log.is_cut()
    assert b"y" * 150 in list(log.lines())


def test_a_log_is_of_this_user_alone(tmp_path, monkeypatch):
    """It says which programs were run and where, so nobody else may look into the directories that are made for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = AppendedLog("private", limit=100)
    log.append(b"x")
    made = [each for each in (log.path, *log.path.parents) if each.is_relative_to(tmp_path / "cache")]
    assert len(made) > 2
    assert [each for each in made if each.stat().st_mode & 0o077] == []


def test_two_that_are_equally_near_are_both_said():
    """Of two values of the last start, neither says more than the other one."""
    numbers = {"digest-1": "1.0", "digest-3": "3.0", "digest-2": "2.0"}
    module = text(["tanh"]).replace(
        "    return",
        "    %c = stablehlo.constant dense<{}> : tensor<f32>\n    %9 = stablehlo.add %c, %0 : tensor<f32>\n    return",
    )
    known = {digest: module.replace("{}", value) for digest, value in numbers.items()}
    one, three, last = (program(n, f"digest-{digest}", SIGNATURES[0], "a") for n, digest in ((1, 1), (3, 3), (50, 2)))
    before = StartRecord(Process(id="one", program="train.py", began=1.0), [one, three])
    after = StartRecord(Process(id="two", program="train.py", began=400.0), [last])
    said = cause(last, Earlier([before, after], Texts(lambda _: known))).sentence
    assert said == "a constant changed: 1 -> 2; or, as near: a constant changed: 3 -> 2"


def test_starts_that_repeat_each_other_are_compared_as_any_other():
    """What is remembered of records that say the same is right for programs that others came between."""
    chance = random.Random(0)
    programs = [
        program(n, f"digest-{n % 17}", chance.choice(SIGNATURES), chance.choice("ab"))._replace(
            details=DETAILS | {"weak": chance.choice(["", "x"]), "jaxlib": chance.choice(["0.10", "0.11"])}
        )
        for n in range(1, 80)
    ]
    together = Earlier(starts(*programs), Texts.none())
    for each in itertools.chain(programs, reversed(programs)):
        alone = Earlier(starts(*programs), Texts.none())
        assert together.of_function(each) == alone.of_function(each)
        assert cause(each, together).sentence == cause(each, alone).sentence
