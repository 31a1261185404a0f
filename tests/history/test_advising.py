"""Findings from records and texts that are made up: what counts as evidence, and what silences a finding."""

from __future__ import annotations

import random

import pytest

from ejcache.history.advise import SMALLEST, advise, of_function, set_smaller_apart
from ejcache.history.difference import ARGUMENTS, SHAPE, kind_of_signatures, program_differences
from ejcache.history.findings import Advice, Saving, SmallerFindings, annotation, document
from ejcache.history.padding import buckets, buckets_of
from ejcache.history.program_text import Places, read_text
from ejcache.history.recorded_program import argument_types
from ejcache.history.source_files import SourceFiles
from ejcache.journal.line import HIT, STORED, ProgramRecord
from ejcache.journal.start_records import Process, StartRecord

DEFINED = "/home/me/train.py:10 step"


def program(key, *, at=0.0, caller="/home/me/train.py:31 in main", defined=DEFINED, outcome=STORED, **more):
    """A program that took a second to compile, and a tenth to trace."""
    seconds = {"traced": 0.1, "compiled": 1.0} if outcome == STORED else {"traced": 0.1, "loaded": 0.05}
    details = {"defined": defined, "weak": "", "committed": ""} if outcome == STORED else {}
    reason, components = ("absent", {"computation": key}) if outcome == STORED else ("", {})
    fields = {
        "name": "jit_step",
        "reason": reason,
        "components": components,
        "signature": "(tensor<4xf32>) -> tensor<4xf32>",
        "seconds": seconds,
        **more,
    }
    return ProgramRecord(
        key=key, time=at, caller=caller, outcome=outcome, details=details, compile_seconds=1.0, url="/c", **fields
    )


def start(*programs, number=0, name="train.py", **versions):
    process = Process(id=f"p{number}", program=name, began=float(number), versions=versions)
    return StartRecord(process, programs)


def advised(*records, **options):
    return advise(records, lambda _: {}, **{"lines_of": lambda _: ["x = f(x)"] * 100, **options})


def sized(size, number, **more):
    return program(f"k{size}", at=number, signature=f"(tensor<{size}x8xf32>) -> tensor<f32>", **more)


SIZES = [sized(size, number) for number, size in enumerate((5, 9, 12, 16))]


def test_made_anew():
    (found,) = advised(start(*(program("k", at=n, outcome=HIT if n else STORED) for n in range(4))))
    assert (found.kind, found.file, found.line, found.calls) == ("made_anew", "/home/me/train.py", 31, 4)
    assert [(each.known, each.seconds) for each in found.saves] == [("at least", pytest.approx(3 * 0.15))]
    assert found.source == "x = f(x)"


def test_a_program_of_many_lines_is_not_made_anew():
    """Each line asks for it once: nothing says that one function was made several times."""
    asked = (
        program("k", at=n, caller=f"/home/me/train.py:{n} in main", outcome=HIT if n else STORED) for n in range(4)
    )
    assert advised(start(*asked)) == []


def test_what_was_not_traced_again_is_placed_in_another_way():
    again = program("k", at=1.0, outcome=HIT)._replace(seconds={"lowered": 0.2, "loaded": 0.1})
    (found,) = advised(start(program("k"), again))
    assert (found.kind, found.line) == ("placement", 31)
    assert "committed" in found.sentence


def test_shape_varies():
    (found,) = advised(start(*SIZES))
    assert (found.kind, found.programs, found.saves[0].known) == ("shape_varies", 4, "about")
    assert found.saved == pytest.approx(2.2)
    assert "2 programs instead of 4 for the sizes 5, 9, 12, 16" in found.what_to_do


def test_sizes_that_are_buckets_already():
    """Sizes that grow by a factor of two or more, as those of the server in docs/places.md, are what is advised."""
    assert advised(start(*(sized(size, number) for number, size in enumerate((16, 64, 256))))) == []
    assert buckets_of(each.signature for each in SIZES).is_done is False


def test_hits_are_known_by_the_miss_that_stored_them():
    """A warm start is advised on, too; without that miss, nothing is said."""
    warm = start(*(sized(size, n, outcome=HIT) for n, size in enumerate((5, 9, 12, 16))), number=1)
    warm = warm._replace(programs=[each._replace(signature="") for each in warm.programs])
    assert [each.kind for each in advised(start(*SIZES), warm)] == ["shape_varies"]
    assert advised(warm) == []


def test_other_dimensions_are_no_buckets():
    """A model of another width varies in many dimensions."""
    signatures = [f"(tensor<{n}x{n * 3}xf32>, tensor<{n * 5}x{n + 1}xf32>, tensor<{n % 3}x2xf32>)" for n in range(4, 9)]
    assert advised(start(*(program(f"k{n}", at=n, signature=each) for n, each in enumerate(signatures)))) == []


def test_two_sizes_are_no_pattern():
    assert advised(start(*SIZES[:2])) == []


def test_weak_type():
    weak = program("k2", at=1.0)
    weak = weak._replace(details={**weak.details, "weak": "scale"})
    (found,) = advised(start(program("k1"), weak))
    assert (found.kind, found.line) == ("weak_type", 31)
    assert "weak type of argument scale changed" in found.sentence


def test_a_library_is_not_advised_on():
    """The user's line that calls it is, and without one nothing is."""
    library = "/venv/lib/python3.12/site-packages/flax/nnx.py"
    theirs = [each._replace(caller=f"{library}:5 in f") for each in SIZES]
    assert advised(start(*theirs)) == []
    called = [each._replace(details={**each.details, "defined": f"{library}:9 step"}) for each in SIZES]
    assert [each.file for each in advised(start(*called))] == ["/home/me/train.py"]


@pytest.mark.parametrize(("called_at", "line"), [(3, 2), (5, 5), (7, 7)])
def test_a_function_that_is_made_anew_is_named_where_it_is_made(called_at, line):
    """By the one line that gives what `jit` returns the name that is called; else where it is called."""
    source = [
        "def train_batch(self, x):",
        "    step = jax.jit(functools.partial(self.update, rate=0.1))",
        "    self.w = step(self.w, x)",
        "def evaluate(self, x):",
        "    return jax.jit(self.loss)(self.w, x)",
        "def other(self, x):",
        "    return twice(self.w, x)",
        "twice = jax.jit(f)",
        "twice = jax.jit(g)",
    ]
    caller = f"/home/me/train.py:{called_at} in Trainer.train_batch"
    asked = (program("k", at=n, caller=caller, outcome=HIT if n else STORED) for n in range(4))
    (found,) = advised(start(*asked), lines_of=lambda _: source)
    assert (found.kind, found.line) == ("made_anew", line)
    assert (f"called at train.py:{called_at}" in found.message) is (line != called_at)


JAX = "/venv/lib/python3.12/site-packages/jax/_src/dispatch.py:102"
OPERATIONS = ("sin", "cos", "add", "mul", "sub", "exp", "log", "tanh")


def operation(name, number, caller):
    return program(f"{name}{number}", at=number, name=f"jit_{name}", defined=f"{JAX} {name}", caller=caller)


def test_single_operations():
    """How many there were, what they took, and the lines of the function that took most."""
    made = [operation(name, n, f"/home/me/train.py:{n + 40} in prepare") for n, name in enumerate(OPERATIONS)]
    other = operation("sort", 9, "/home/me/other.py:7 in load")
    (found,) = advised(start(*made, other))
    assert (found.kind, found.file, found.line) == ("single_operations", "/home/me/train.py", 40)
    assert (found.programs, found.seconds, found.saves) == (9, pytest.approx(9.9), ())
    words = (
        "9 programs outside of any jit (sin, cos, add, mul, \N{HORIZONTAL ELLIPSIS}) took 9.90 s, most, 8.80 s, from "
    )
    assert found.sentence.startswith(words)
    assert found.sentence.endswith("train.py:40 to 47")
    assert advised(start(*made[:-1])) == []


def test_single_operations_of_a_model_are_named_where_it_is_made():
    """The operations of two methods count for the line of the user's that makes the model."""
    made = [
        operation("sin", n, f"/home/me/model.py:{n + 4} in {method}.__init__, from /home/me/train.py:9 in main")
        for n, method in enumerate(["Net"] * 6 + ["Block"] * 2)
    ]
    (found,) = advised(start(*made))
    assert (found.file, found.line, found.programs) == ("/home/me/train.py", 9, 8)
    assert found.sentence.endswith("train.py:9")


def test_what_is_not_known_to_save_anything_must_have_cost_much():
    """Operations that took less than half a second are no finding."""
    made = [operation(name, n, f"/home/me/train.py:{n} in prepare") for n, name in enumerate(OPERATIONS)]
    quick = [each._replace(seconds={"compiled": 0.05}) for each in made]
    assert advised(start(*quick)) == []


@pytest.mark.parametrize(
    ("line", "silenced"),
    [
        ("step(x)  # ejcache: ignore", True),
        ("step(x)  # ejcache: ignore[shape_varies]", True),
        ("step(x)  # ejcache: ignore[weak_type, shape_varies]", True),
        ("step(x)  # ejcache: ignore[weak_type]", False),
        ("step(x)", False),
    ],
)
def test_silenced_by_a_comment(line, silenced):
    assert bool(advised(start(*SIZES), lines_of=lambda _: [line] * 100)) is not silenced


def captured(*chains):
    """The text of `step`, with a large constant for each of these lines of functions, the innermost first."""
    head = [
        f"    %c{n} = stablehlo.constant dense_resource<__elided__> : tensor<1000x1000xf32> loc(#loc)"
        for n, _ in enumerate(chains)
    ]
    uses, places, count = [], ["#loc = loc(unknown)"], 0
    for n, chain in enumerate(chains):
        outer = ""
        for line, function in reversed(chain):
            count += 3
            places.append(f'#loc{count} = loc("/home/me/train.py":{line}:1 to :9)')
            places.append(f'#loc{count + 1} = loc("{function}"(#loc{count}))')
            if outer:
                places.append(f"#loc{count + 2} = loc(callsite(#loc{count + 1} at #{outer}))")
            outer = f"loc{count + 2 if outer else count + 1}"
        uses.append(f"    %{n} = stablehlo.add %c{n}, %c{n} : tensor<1000x1000xf32> loc(#{outer})")
    body = ["module @jit_step {", "  func.func public @main() {", *head, *uses, "    return loc(#loc)", "  }", "}"]
    return "\n".join([*body, *places])


@pytest.mark.parametrize(
    ("chains", "line"),
    [
        ([[(9, "forward"), (6, "step")], [(10, "forward"), (6, "step")]], 6),  # a tree of arrays is passed on
        ([[(9, "forward"), (6, "step")]], 9),
        ([[(13, "look_up"), (7, "step"), (99, "main")]], 13),
        ([[(13, "look_up"), (7, "step")], [(9, "forward"), (6, "step")]], 13),  # two arrays, the larger one
    ],
)
def test_a_large_constant_is_named_where_the_function_uses_it(chains, line):
    made = program("k", defined="/home/me/train.py:5 step")._replace(components={"computation": "digest"})
    text = captured(*chains).replace(
        "%c0 = stablehlo.constant dense_resource<__elided__> : tensor<1000x1000",
        "%c0 = stablehlo.constant dense_resource<__elided__> : tensor<1000x1001",
    )
    found = advise([start(made)], lambda _: {"digest": text})
    assert [(each.kind, each.line) for each in found] == [("large_constant", line)]


def test_calls_that_a_text_multiplies_are_not_all_followed():
    """Somebody else may have written the text: forty lines would name a place 2**40 times, or name themselves."""
    call = [f"#loc{n} = loc(callsite(#loc{n - 1} at #loc{n - 1}))" for n in range(1, 41)]
    places = Places(['#loc0 = loc("/home/me/train.py":7:1)', *call, "#loc50 = loc(callsite(#loc50 at #loc0))"])
    assert {place.line for place in places.chain("loc40")} == {7}
    assert [place.line for place in places.chain("loc50")] == [7]
    assert places.chain("loc60") == ()


def test_silenced_by_its_kind():
    assert advised(start(*SIZES), ignore=["shape_varies"]) == []


def test_only_the_last_start_of_a_program_counts():
    assert advised(start(*SIZES), start(program("k"), number=1)) == []
    assert len(advised(start(*SIZES), start(program("k"), number=1, name="other.py"))) == 1


def test_ranks_repeat_each_other():
    ranks = [start(*SIZES, number=n) for n in range(3)]
    ranks = [each._replace(process=each.process._replace(rank=n, ranks=3)) for n, each in enumerate(ranks)]
    assert len(advised(*ranks)) == 1


@pytest.mark.parametrize(
    ("sizes", "bounds"),
    [
        ((1, 2, 3, 4, 5, 6, 7, 8), [1, 2, 4, 8]),
        ((100, 101, 102, 128), [128]),
        ((8, 512, 2048), [8, 512, 2048]),
        ((9, 13, 22, 31, 40), [16, 40]),
        ((7,), [7]),
    ],
)
def test_buckets_hold_every_size(sizes, bounds):
    assert buckets(sizes) == bounds


@pytest.mark.parametrize("seed", range(20))
def test_who_pads_to_what_was_named_is_told_nothing_more(seed):
    chance = random.Random(seed)
    sizes = chance.sample(range(1, chance.choice([20, 300, 5000])), k=chance.randrange(3, 12))
    seen = buckets_of([f"(tensor<{size}x8xf32>) -> tensor<f32>" for size in sizes])
    if not seen.is_done:
        again = buckets_of([f"(tensor<{size}x8xf32>) -> tensor<f32>" for size in seen.sizes])
        assert again is None or again.is_done
    assert seen.sizes[-1] >= max(sizes)


def test_argument_types():
    types = argument_types("(tensor<4x8xf32>, tensor<i32>, tensor<2xcomplex<f32>>) -> (tensor<9x9xbf16>)")
    assert [(each.shape, each.dtype) for each in types] == [((4, 8), "f32"), ((), "i32"), ((2,), "complex<f32>")]


SAVING = Saving("about", 2.0, "of these")
FINDING = Advice(
    "shape_varies", "step", "/home/me/a,b.py", 7, "step(x)", 4, 9, 4.0, (SAVING,), "x changed", "pad 100%\nof it"
)


def test_smaller_findings_are_counted():
    """What saves less than half a hundredth of a second is none; a large constant is one whatever it saves."""
    shown = [FINDING, FINDING._replace(kind="large_constant", saves=(SAVING._replace(seconds=0.0),))]
    assert set_smaller_apart(shown) == (shown, SmallerFindings())
    small = [FINDING._replace(saves=(SAVING._replace(seconds=saves),)) for saves in (0.02, 0.01)]
    found, smaller = set_smaller_apart([*shown, *small])
    assert found == shown
    assert smaller == (2, pytest.approx(0.03))
    assert smaller.words == "2 smaller findings would save 0.03 s together: ejcache advise --all shows them"
    quick = start(*(each._replace(seconds={"compiled": 0.001}) for each in SIZES))
    assert [each.kind for each in advised(quick, least=0.0)] == ["shape_varies"]
    assert advised(quick, least=SMALLEST) == []


def test_forms():
    assert document([FINDING], SmallerFindings(2, 0.03)) == {
        "findings": [
            {
                "kind": "shape_varies",
                "function": "step",
                "file": "/home/me/a,b.py",
                "line": 7,
                "source": "step(x)",
                "programs": 4,
                "calls": 9,
                "seconds": 4.0,
                "saves": [{"known": "about", "seconds": 2.0, "of": "of these"}],
                "sentence": "x changed",
                "what_to_do": "pad 100%\nof it",
                "help": "ejcache help shape_varies",
            }
        ],
        "smaller_findings": {"number": 2, "saves": 0.03},
    }
    assert annotation(FINDING) == (
        "::warning file=/home/me/a%2Cb.py,line=7,title=ejcache%3A a shape varies::"
        "x changed; pad 100%25%0Aof it (4 programs, 9 calls, 4.00 s a start; saves about 2.00 s of these)"
    )


def test_of_function():
    assert of_function([FINDING], "jit_step") == [FINDING]
    assert of_function([FINDING], "jit_other") == []


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([(17, 32), (34,), (34,)], [(21, 32), (40,), (40,)], SHAPE),  # a graph's nodes and edges
        ([(8, 128)], [(16, 256)], SHAPE),
        ([(8, 8)], [(9, 9)], SHAPE),
        ([(8, 128, 3)], [(16, 256, 4)], ARGUMENTS),
        ([(64, 32), (32, 8)], [(64, 48), (48, 8)], ARGUMENTS),  # the width of a model
        ([(8, 128)], [(8, 128, 1)], ARGUMENTS),
    ],
)
def test_which_sizes_vary_from_call_to_call(before, after, kind):
    """One or two, each along one axis; a text and a signature say the same."""
    texts = [
        "\n".join(f"%arg{n}: tensor<{'x'.join(map(str, (*shape, 'f32')))}>" for n, shape in enumerate(side))
        for side in (before, after)
    ]
    assert kind_of_signatures(*texts) == kind
    modules = [
        f"module @jit_f {{\n  func.func public @main({', '.join(text.splitlines())}) -> (tensor<f32>) {{\n"
        "    %0 = stablehlo.constant dense<0.0> : tensor<f32>\n    return %0 : tensor<f32>\n  }\n}\n"
        for text in texts
    ]
    (found, *_) = program_differences(*map(read_text, modules), sources=SourceFiles(until=0))
    assert found.kind == kind
