"""Flags, overrides, variables and file names in normal form: what is the same, and above all what is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejcache.keys.accelerators import split_words
from ejcache.keys.environment_variables import compile_variables
from ejcache.keys.flags import KINDS, Kind, canonical_flags, canonical_overrides, split_flags

SCALARS = sorted(name for name, kind in KINDS.items() if kind is Kind.SCALAR)
BOOLEANS = sorted(name for name, kind in KINDS.items() if kind is Kind.BOOLEAN)
DROPPED = sorted(name for name, kind in KINDS.items() if kind is Kind.DROPPED)

values = st.text("abc019_.,=+-/", max_size=5)
scalar_tokens = st.builds(lambda n, v: f"--{n}={v}", st.sampled_from(SCALARS[:6]), values)
boolean_tokens = st.builds(
    lambda n, v: f"--{n}{v}", st.sampled_from(BOOLEANS[:4]), st.sampled_from(["", "=true", "=1", "=false", "=0"])
)
list_tokens = st.builds(
    lambda n, v: f"--{n}={v}",
    st.sampled_from([n for n, k in KINDS.items() if k in (Kind.SET, Kind.MAP, Kind.LIST, Kind.FILES)]),
    values,
)
dropped_tokens = st.builds(lambda n, v: f"--{n}={v}", st.sampled_from(DROPPED), values)
odd_tokens = st.sampled_from(
    [
        "--xla_new_flag=1",
        "--xla_new_flag=2",
        "--other",
        "TPU_MEGACORE=MEGACORE_DENSE",
        f"--no{BOOLEANS[0]}",
        f"-{SCALARS[0]}=1",
        f"--{SCALARS[1]}",
        "--flagfile=/x",
        "word",
        "-",
        "--",
        "",
        "--xla_dump_to",
    ]
)
any_tokens = st.lists(st.one_of(scalar_tokens, boolean_tokens, list_tokens, dropped_tokens, odd_tokens), max_size=10)


@given(any_tokens)
def test_normal_form_is_its_own_normal_form(tokens):
    """Putting flags into normal form a second time changes nothing."""
    once = canonical_flags(tokens)
    assert canonical_flags(once) == once


@given(st.dictionaries(st.sampled_from(SCALARS), values, max_size=6), st.randoms())
def test_order_of_independent_flags_does_not_count(flags, random):
    """Scalar flags of different names mean the same in any order."""
    tokens = [f"--{name}={value}" for name, value in flags.items()]
    shuffled = list(tokens)
    random.shuffle(shuffled)
    assert canonical_flags(tokens) == canonical_flags(shuffled)


@given(st.lists(scalar_tokens, max_size=8), st.lists(scalar_tokens, max_size=8))
def test_scalar_flags_are_equal_exactly_where_their_effective_values_are(first, second):
    """Two lists of scalar flags are equal if and only if the last value of every flag is."""

    def effective(tokens):
        return {token.partition("=")[0]: token.partition("=")[2] for token in tokens}

    assert (canonical_flags(first) == canonical_flags(second)) == (effective(first) == effective(second))


@given(any_tokens, st.lists(dropped_tokens, max_size=3))
def test_dropped_flags_change_nothing(tokens, dropped):
    """Dump targets, log flags and cache paths in front of anything leave its normal form alone."""
    if canonical_flags(tokens) == tuple(tokens) and any("flagfile" in token for token in tokens):
        return
    doubtful = {"xla_dump_to"} if "--xla_dump_to" in tokens else set()
    extra = [token for token in dropped if token[2:].partition("=")[0] not in doubtful]
    assert canonical_flags([*extra, *tokens]) == canonical_flags(tokens)


@given(any_tokens)
def test_unknown_tokens_all_stay_in_their_order(tokens):
    """No token that is not known is lost, repeated or moved among its like."""
    known = set(KINDS)

    def unknown(items):
        return [t for t in items if not (t.startswith("--") and t[2:].partition("=")[0] in known)]

    assert unknown(canonical_flags(tokens)) == unknown(tokens)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--xla_cpu_max_isa=AVX2", "--xla_cpu_max_isa=AVX512"),
        ("--xla_cpu_max_isa=AVX2", ""),
        ("--xla_cpu_enable_fast_math=true", "--xla_cpu_enable_fast_math=false"),
        ("--xla_cpu_enable_fast_math=false --xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math=false"),
        ("--xla_disable_hlo_passes=cse", "--xla_disable_hlo_passes=cse,dce"),
        ("--xla_disable_hlo_passes=a --xla_disable_hlo_passes=b", "--xla_disable_hlo_passes=b"),
        ("--xla_disable_hlo_passes=a", "--xla_enable_hlo_passes_only=a"),
        ("--xla_backend_extra_options=a=1 --xla_backend_extra_options=b=1", "--xla_backend_extra_options=b=1"),
        ("--xla_backend_extra_options=a=1,a=2", "--xla_backend_extra_options=a=2,a=1"),
        ("--xla_gpu_ptx_file=a --xla_gpu_ptx_file=b", "--xla_gpu_ptx_file=b --xla_gpu_ptx_file=a"),
        ("--xla_new=1 --xla_new=2", "--xla_new=2 --xla_new=1"),
        ("--xla_new=1 --xla_new=2", "--xla_new=2"),
        ("--xla_gpu_enable_command_buffer=+FUSION", ""),
        ("--xla_fuel=cse=1", "--xla_fuel=cse=2"),
        ("TPU_MEGACORE=MEGACORE_DENSE", ""),
        ("--xla_new", "--xla_new=true"),
        (
            "--noxla_cpu_enable_fast_math --xla_cpu_enable_fast_math",
            "--xla_cpu_enable_fast_math --noxla_cpu_enable_fast_math",
        ),
        ("-xla_cpu_max_isa=A --xla_cpu_max_isa=B", "--xla_cpu_max_isa=B -xla_cpu_max_isa=A"),
        ("--xla_cpu_max_isa=A word --xla_cpu_max_isa=B", "word --xla_cpu_max_isa=B"),
        ("--xla_cpu_max_isa=A word", "word --xla_cpu_max_isa=A"),
        ("--unknown --xla_dump_to 5", "--unknown 5"),
        ("--xla_cpu_max_isa=A --flagfile=f", "--flagfile=f --xla_cpu_max_isa=A"),
        ("--xla_tpu_compiler_variant=a", "--xla_tpu_compiler_variant=b"),
    ],
)
def test_different_flags_stay_different(first, second):
    """What the compiler could tell apart, the normal form tells apart."""
    assert canonical_flags(split_flags(first)) != canonical_flags(split_flags(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math=true"),
        ("--xla_cpu_enable_fast_math=1", "--xla_cpu_enable_fast_math=TRUE"),
        ("--xla_cpu_enable_fast_math=0", "--xla_cpu_enable_fast_math=true --xla_cpu_enable_fast_math=False"),
        ("--xla_cpu_max_isa=AVX2 --xla_cpu_max_isa=AVX", "--xla_cpu_max_isa=AVX"),
        ("--xla_cpu_max_isa=AVX2 --xla_new=1", "--xla_new=1   --xla_cpu_max_isa='AVX2'"),
        ("--xla_disable_hlo_passes=a,b", "--xla_disable_hlo_passes=b --xla_disable_hlo_passes=a,b"),
        ("--xla_backend_extra_options=a=1,b=2", "--xla_backend_extra_options=b=2 --xla_backend_extra_options=a=1"),
        ("--xla_backend_extra_options=a=1,a=2", "--xla_backend_extra_options=a=2"),
        ("--xla_dump_to=/a --xla_dump_hlo_as_text", "--xla_dump_to=/b"),
        ("--xla_force_host_platform_device_count=8", ""),
        ("--xla_gpu_cuda_data_dir=/usr/local/cuda-12 --xla_gpu_kernel_cache_file=/tmp/k", ""),
        ("--xla_gpu_per_fusion_autotune_cache_dir=/x/y", "--xla_gpu_per_fusion_autotune_cache_dir=/z"),
    ],
)
def test_flags_that_mean_the_same_are_the_same(first, second):
    """Spelling, order, repetition, dump flags and cache paths do not count."""
    assert canonical_flags(split_flags(first)) == canonical_flags(split_flags(second))


def test_xla_cpu_flags_are_never_dropped():
    """Host-offloaded code is compiled for the CPU on every platform."""
    assert not [name for name in DROPPED if "xla_cpu" in name]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ()),
        (" \t\r\n ", ()),
        ("--a=1\n--b", ("--a=1", "--b")),
        ("--a='x y' --b=\"x y\"", ("--a=x y", "--b=x y")),
        (r"""--a="x\"y" --b='x\y'""", ('--a=x"y', r"--b=x\y")),
        ("--a='open", ("--a=open",)),
        ("--a='x'tail --b", ("--a=x", "tail", "--b")),
        ("--a=x'y z'", ("--a=x'y", "z'")),
        ("word --a", ("word", "--a")),
        ("--a=", ("--a=",)),
        ("--a='", ("--a=",)),
    ],
)
def test_flags_text_is_split_as_xla_splits_it(text, tokens):
    """White space separates, quotes after `=` hold together, double quotes know backslashes."""
    assert split_flags(text) == tokens


def test_text_for_an_unknown_reader_with_quotes_stays_whole():
    """Two spaces within quotes are not one where nobody knows how the reader takes quotes."""
    assert split_words("--a=1  --b=2") == ("--a=1", "--b=2")
    assert split_words("--a='1  2'") == ("--a='1  2'",)
    dump = '--xla_dump_to="/a" --xla_tpu_scoped_vmem_limit_kib='
    texts = [dump + "1", dump + "2", '--xla_backend_extra_options="a=1" --b=2,a=3', "--xla_dump_to=/a\\ b --c=1"]
    for text in texts:
        assert compile_variables("tpu", {"LIBTPU_INIT_ARGS": text}) == {"LIBTPU_INIT_ARGS": text}


def test_a_file_that_a_flag_names_counts_by_content():
    """A moved profile is the same, another profile at the same path is not, an unreadable one counts by path."""
    flag = "--xla_gpu_pgle_profile_file_or_directory_path="
    contents = {"/a/p.pb": "1", "/b/p.pb": "1", "/c/p.pb": "2", "/b/p.txt": "1"}
    normal = {path: canonical_flags([flag + path], content=contents.get) for path in [*contents, "/gone/p.pb"]}
    assert normal["/a/p.pb"] == normal["/b/p.pb"]
    assert len(set(normal.values())) == 4
    assert normal["/gone/p.pb"] == (f"{flag}/gone/p.pb",)
    ptx = ["--xla_gpu_ptx_file=/a/p.pb", "--xla_gpu_ptx_file=/c/p.pb"]
    assert canonical_flags(ptx, content=contents.get) != canonical_flags(ptx[::-1], content=contents.get)


def test_overrides_are_normalised_like_flags():
    """In compile options too: order of scalars and dump flags do not count, all else does."""
    assert canonical_overrides([("xla_cpu_max_isa", "A"), ("xla_embed_ir_in_executable", True)]) == canonical_overrides(
        [
            ("xla_embed_ir_in_executable", True),
            ("xla_dump_to", "/x"),
            ("xla_cpu_max_isa", "B"),
            ("xla_cpu_max_isa", "A"),
        ]
    )
    different = [
        [],
        [("xla_cpu_max_isa", "A")],
        [("xla_cpu_max_isa", "1")],
        [("xla_cpu_max_isa", 1)],
        [("xla_cpu_max_isa", 1.0)],
        [("xla_cpu_max_isa", True)],
        [("xla_disable_hlo_passes", "a"), ("xla_disable_hlo_passes", "b")],
        [("xla_disable_hlo_passes", "b"), ("xla_disable_hlo_passes", "a")],
        [("new", "a"), ("newer", "b")],
        [("newer", "b"), ("new", "a")],
    ]
    assert len({canonical_overrides(overrides) for overrides in different}) == len(different)


def test_a_file_of_flags_counts_by_what_is_in_it():
    """`XLA_FLAGS` may name a file: its content is the flags, not its path."""
    files = {"/a": "--xla_cpu_max_isa=AVX2\n--xla_dump_to=/x", "/b": "--xla_cpu_max_isa=AVX2", "/c": ""}
    variables = {path: compile_variables("cpu", {"XLA_FLAGS": path}, flags_files=files) for path in [*files, "/gone"]}
    assert variables["/a"] == variables["/b"] == compile_variables("cpu", {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"})
    assert variables["/c"] == {}
    assert variables["/gone"] == {"XLA_FLAGS": "/gone"}


def test_variables_count_on_the_platforms_that_read_them():
    """libtpu's variable means nothing on a CPU, a TF32 override nothing on a TPU; every platform reads XLA_FLAGS."""
    environ = {
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        "LIBTPU_INIT_ARGS": "TPU_MEGACORE=MEGACORE_DENSE --xla_tpu_scoped_vmem_limit_kib=98304",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TRITON_CACHE_DIR": "/x",
        "NEURON_CC_FLAGS": "-O1",
        "HOME": "/root",
    }
    assert set(compile_variables("cpu", environ)) == {"XLA_FLAGS"}
    assert set(compile_variables("tpu", environ)) == {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}
    gpu = {"XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "TRITON_DEFAULT_FP_FUSION"}
    assert set(compile_variables("cuda", environ)) == set(compile_variables("gpu", environ)) == gpu
    assert set(compile_variables("neuron", environ)) == {"XLA_FLAGS", "LIBTPU_INIT_ARGS", "NEURON_CC_FLAGS"}
    assert compile_variables("cpu", {"XLA_FLAGS": "--xla_dump_to=/x"}) == {}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("--xla_tpu_new --xla_b=1", "--xla_tpu_new=true --xla_b=1", True),
        ("--xla_cpu_ftz", "--xla_cpu_ftz=true", True),
        ("MEGACORE=DENSE --xla_cpu_ftz", "--xla_cpu_ftz=1 MEGACORE=DENSE", True),
        ("--xla_cpu_max_isa=AVX A=1 --xla_cpu_ftz", "--xla_cpu_ftz A=1 --xla_cpu_max_isa=AVX", False),
        ("--xla_cpu_max_isa=AVX A=1 --xla_cpu_ftz=1", "--xla_cpu_ftz=1 A=1 --xla_cpu_max_isa=AVX", True),
        ("A=1 B=1", "B=1 A=1", False),
        ("--xla_tpu_new 5", "--xla_tpu_new=true 5", False),
        ("--xla_tpu_new 5 --xla_b", "--xla_tpu_new --xla_b 5", False),
        ("--xla_tpu_new=1 --xla_tpu_new=2", "--xla_tpu_new=2 --xla_tpu_new=1", False),
        ("--noxla_tpu_new", "--noxla_tpu_new=true", False),
        ("-- --xla_b --xla_cpu_max_isa=AVX", "-- --xla_b=true --xla_cpu_max_isa=AVX", False),
    ],
)  # fmt: skip
def test_words_of_libtpu_do_not_make_the_order_of_flags_count(first, second, same):
    """Of a flag without a value and the word behind it nobody can say whether they belong together."""
    keys = [compile_variables("tpu", {"LIBTPU_INIT_ARGS": text}) for text in (first, second)]
    assert (keys[0] == keys[1]) is same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            {"NEURON_CC_FLAGS": "-O1 --model-type=transformer"},
            {"NEURON_CC_FLAGS": "--model-type transformer --optlevel 1"},
        ),
        ({"NEURON_CC_FLAGS": "--lnc=2"}, {"NEURON_CC_FLAGS": "--logical-nc-config=2 --cache_dir=/x --verbose info"}),
        ({"NEURON_CC_FLAGS": "--retry_failed_compilation -O2"}, {"NEURON_CC_FLAGS": "-O1 -O2 --logfile=/x"}),
        ({"NEURON_RT_VISIBLE_CORES": "0-3", "NEURON_PJRT_PROCESS_INDEX": "1"}, {"NEURON_RT_LOG_LEVEL": "INFO"}),
        ({"NEURON_PJRT_PROCESSES_NUM_DEVICES": "2,2", "NEURON_COMPILE_CACHE_URL": "s3://x"}, {"NEURON_CC_FLAGS": ""}),
    ],
)
def test_neuron_environments_that_compile_the_same(first, second):
    """Order, spelling, cache, log and run-time settings of Neuron do not count."""
    assert compile_variables("neuron", first) == compile_variables("neuron", second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"NEURON_CC_FLAGS": "-O1"}, {"NEURON_CC_FLAGS": "-O2"}),
        ({"NEURON_CC_FLAGS": "-O1"}, {}),
        ({"NEURON_CC_FLAGS": "--auto-cast=none"}, {"NEURON_CC_FLAGS": "--auto-cast=all"}),
        ({"NEURON_CC_FLAGS": "--enable-saturate-infinity"}, {}),
        ({"NEURON_CC_FLAGS": "--new=1 --new=2"}, {"NEURON_CC_FLAGS": "--new=2 --new=1"}),
        ({"NEURON_CC_FLAGS": "--optlevel=1 --opt=2"}, {"NEURON_CC_FLAGS": "--opt=2 --optlevel=1"}),
        ({"NEURON_CC_FLAGS": "--a='1  2'"}, {"NEURON_CC_FLAGS": "--a='1 2'"}),
        ({"NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU": "1"}, {}),
        ({"NEURON_FUSE_SOFTMAX": "1"}, {}),
    ],
)
def test_neuron_environments_that_compile_differently(first, second):
    """Compiler options, trivial computations on the CPU and unknown variables count."""
    assert compile_variables("neuron", first) != compile_variables("neuron", second)


@given(st.dictionaries(st.sampled_from(["NEURON_CC_FLAGS", "NEURON_RT_NUM_CORES", "NEURON_X"]), st.text(max_size=5)))
@settings(max_examples=30)
def test_neuron_variables_mean_nothing_elsewhere(environ):
    """Another platform does not read them."""
    assert compile_variables("cpu", environ) == compile_variables("tpu", environ) == {}
