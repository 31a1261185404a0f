"""Pairs of compilations that are the same, and pairs that are not, with what makes them so.

`tests/keys/test_key_pairs.py` measures them; `tools/key_table.py` writes them down in `tests/keys/key_pairs.md`.
"""

from __future__ import annotations

from typing import Any

from key_measuring import Case, Pair, Process, Side, side

__all__ = ["PAIRS"]


def same(title: str, one: Side, other: Side, *, known: str = "") -> Pair:
    return Pair(title, same=True, one=one, other=other, known=known)


def different(title: str, one: Side, other: Side) -> Pair:
    return Pair(title, same=False, one=one, other=other)


def env(**variables: str | None) -> Process:
    return Process(env=tuple(sorted(variables.items())))


def flags(text: str) -> Process:
    return Process(flags=text)


def config(**values: Any) -> Process:
    return Process(config=tuple(sorted(values.items())))


def enabled(**settings: Any) -> Process:
    return Process(settings=tuple(sorted(settings.items())))


def on(platform: str, flags: str = "", **variables: str) -> Process:
    return Process(platform=platform, flags=flags, env=tuple(sorted(variables.items())))


def with_argv(*arguments: str) -> Process:
    return Process(argv=("train.py", *arguments))


def assigned(name: str, value: str | None) -> Process:
    module, _, attribute = name.rpartition(".")
    return Process(assigned=((module, attribute, value),))


def flags_file(path: str, content: str) -> Process:
    return Process(env=(("XLA_FLAGS", path),), files=((path, content),))


def profile_file(path: str, content: str) -> Process:
    profile = f"--xla_gpu_pgle_profile_file_or_directory_path={path}"
    return Process(platform="gpu", flags=profile, files=((path, content),))


def plugin(place: str, content: str) -> Process:
    """A plug-in that is installed in `place`, with a native library of that content."""
    package = f"{place}/jax_plugins/some_chip"
    files = ((f"{package}/__init__.py", "def initialize(): pass"), (f"{package}/chip.so", content))
    return Process(platform="some_chip", files=files, path=(place,))


def of(process: Process, program: str = "step", **options: Any) -> Side:
    return side(program, process=process, **options)


PLAIN = side()
METADATA = {"jax_compilation_cache_include_metadata_in_key": True}
PATTERN = {**METADATA, "jax_hlo_source_file_canonicalization_regex": ".*/(?=programs.py)"}
ALL_CACHES = {"jax_persistent_cache_enable_xla_caches": "all"}
# Flags of which each changes what XLA makes.
FAST, ISA = "--xla_cpu_enable_fast_math=true", "--xla_cpu_max_isa=AVX"  # less than any host has
EXCESS = "--xla_allow_excess_precision=false"


def moved(place: str, process: Process | None = None, **options: Any) -> Side:
    return side(place="{tmp}/" + place, process=process, **options)


SAME = [
    # -- where things lie
    same("the cache directory moved", PLAIN, of(Process(url="{tmp}/elsewhere/cache"))),
    same(
        "the cache directory moved, with all of XLA's own caches below it",
        of(Process(config=tuple(ALL_CACHES.items()))),
        of(Process(config=tuple(ALL_CACHES.items()), url="{tmp}/elsewhere/cache")),
    ),
    same("a bucket by its URL, and the directory where gcsfuse mounts it", of(Process(url="gs://bucket/cache")), PLAIN),
    same("a bucket of Google's and one of Amazon's", of(Process(url="gs://b/c")), of(Process(url="s3://b/c"))),
    same("a directory and its file URL", PLAIN, of(Process(url="file://{tmp}/cache"))),
    same("the checkout moved", moved("one"), moved("other/deeper")),
    same(
        "the checkout moved, metadata in the key, its path removed by the regex",
        moved("one", config(**PATTERN)),
        moved("other/deeper", config(**PATTERN)),
    ),
    same("another working directory", PLAIN, of(Process(cwd="{tmp}/work"))),
    same("another home", PLAIN, of(env(HOME="{tmp}/home2", XDG_CACHE_HOME="{tmp}/home2/cache"))),
    same("another directory for temporary files", PLAIN, of(env(TMPDIR="/var/tmp"))),
    same(
        "the directory from COMPILE_FUNC_DIR and from JAX_COMPILATION_CACHE_DIR",
        of(env(COMPILE_FUNC_DIR="{tmp}/a")),
        of(env(JAX_COMPILATION_CACHE_DIR="{tmp}/b")),
    ),
    # -- the source
    same(
        "the lines of the source moved, comments came in",
        side("documented"),
        side("documented", edits=(("    def documented(x):", "\n    # why\n\n    def documented(x):\n        # so"),)),
    ),
    same(
        "a local variable was renamed",
        side("documented"),
        side(
            "documented",
            edits=(("scaled = x * 2\n        return scaled + jnp.cos(scaled)", "t = x * 2; return t + jnp.cos(t)"),),
        ),
    ),
    same(
        "an argument was renamed",
        side("documented"),
        side("documented", edits=(("documented(x)", "documented(y)"), ("scaled = x", "scaled = y"))),
    ),
    same("another named scope, which profiles show", side("scoped", scope="one"), side("scoped", scope="two")),
    same("a named scope or none", side("scoped", scope="one"), side("scoped")),
    same("full tracebacks in locations or not", PLAIN, of(config(jax_include_full_tracebacks_in_locations=False))),
    same(
        "a TPU kernel whose source moved",
        side("kernel"),
        side("kernel", place="{tmp}/other", edits=(("    def body(x, y):", "\n\n    def body(x, y):"),)),
    ),
    # -- flags
    same("flags in another order", of(flags(f"{FAST} {EXCESS}")), of(flags(f"{EXCESS} {FAST}"))),
    same("a flag repeated", of(flags(FAST)), of(flags(f"{FAST} {FAST}"))),
    same(
        "a flag set twice, the last value wins",
        of(flags(EXCESS)),
        of(flags(f"--xla_allow_excess_precision=true {EXCESS}")),
    ),
    same("a truth value in another spelling", of(flags(FAST)), of(flags("--xla_cpu_enable_fast_math"))),
    same("a truth value as a number", of(flags(FAST)), of(flags("--xla_cpu_enable_fast_math=1"))),
    same("a value in quotes", of(flags(ISA)), of(flags('--xla_cpu_max_isa="AVX"'))),
    same("more white space between flags", of(flags(f"{FAST} {EXCESS}")), of(flags(f"  {FAST}   {EXCESS} "))),
    same("dumps", PLAIN, of(flags("--xla_dump_to={tmp}/dump --xla_dump_hlo_as_text"))),
    same("dumps to another place", of(flags("--xla_dump_to={tmp}/d1")), of(flags("--xla_dump_to={tmp}/d2"))),
    same("dumps that JAX does not know of", PLAIN, of(flags("--xla_dump_large_constants --xla_dump_emitter_re=x"))),
    same(
        "a set of passes in another order",
        of(flags("--xla_disable_hlo_passes=cse,dce")),
        of(flags("--xla_disable_hlo_passes=dce,cse")),
    ),
    same(
        "further options of a back end in another order",
        of(flags("--xla_backend_extra_options=one=1,two=2")),
        of(flags("--xla_backend_extra_options=two=2,one=1")),
    ),
    same(
        "the CUDA directory", of(on("gpu", "--xla_gpu_cuda_data_dir=/a")), of(on("gpu", "--xla_gpu_cuda_data_dir=/b"))
    ),
    same(
        "where the autotuner of a GPU keeps its results",
        of(on("gpu", "--xla_gpu_dump_autotune_results_to=/a.pb")),
        of(on("gpu", "--xla_gpu_dump_autotune_results_to=/b.pb")),
    ),
    same(
        "compiler options in another order",
        side(compiler_options=(("xla_cpu_enable_fast_math", True), ("xla_allow_excess_precision", False))),
        side(compiler_options=(("xla_allow_excess_precision", False), ("xla_cpu_enable_fast_math", True))),
    ),
    same(
        "flags in a file that XLA_FLAGS names, the file moved",
        of(flags_file("{tmp}/f1", FAST)),
        of(flags_file("{tmp}/f2", FAST)),
    ),
    same("flags in a file, and in the variable", of(flags_file("{tmp}/f1", FAST)), of(env(XLA_FLAGS=FAST), "step")),
    same(
        "a profile for the GPU's scheduler moved",
        of(profile_file("{tmp}/p1.pbtxt", "a")),
        of(profile_file("{tmp}/elsewhere/p1.pbtxt", "a")),
        known="its path is in the serialised options a second time, where nothing says whether it was read from there",
    ),
    same("a dump by compiler option", PLAIN, side(compiler_options=(("xla_dump_hlo_as_text", True),))),
    same("arguments of the program's own", PLAIN, of(with_argv("--learning_rate=3", "--xtra"))),
    same("a dump flag among the arguments", PLAIN, of(with_argv("--xla_dump_to=/x"))),
    same("XLA flags among the arguments in another order", of(with_argv(FAST, EXCESS)), of(with_argv(EXCESS, FAST))),
    same("another name of the program", PLAIN, of(Process(argv=("/opt/run/train2.py",)))),
    # -- variables
    same(
        "LIBTPU_INIT_ARGS on a CPU",
        PLAIN,
        of(env(LIBTPU_INIT_ARGS="--xla_tpu_enable_data_parallel_all_reduce_opt=true")),
    ),
    same("NEURON_CC_FLAGS on a CPU", PLAIN, of(env(NEURON_CC_FLAGS="--optlevel=3"))),
    same(
        "LIBTPU_INIT_ARGS in another order on a TPU",
        of(on("tpu", LIBTPU_INIT_ARGS="--xla_tpu_scoped_vmem_limit_kib=1 --xla_tpu_host_transfer_overlap_limit=2")),
        of(on("tpu", LIBTPU_INIT_ARGS="--xla_tpu_host_transfer_overlap_limit=2 --xla_tpu_scoped_vmem_limit_kib=1")),
    ),
    same(
        "run-time and per-process variables on Neuron",
        of(on("neuron")),
        of(on("neuron", NEURON_RT_VISIBLE_CORES="0-3", NEURON_PJRT_PROCESS_INDEX="1", NEURON_RT_ROOT_COMM_ID="a:1")),
    ),
    same(
        "the flags of neuronx-cc in another order and spelling",
        of(on("neuron", NEURON_CC_FLAGS="--optlevel=1 --model-type transformer")),
        of(on("neuron", NEURON_CC_FLAGS="--model-type=transformer -O1")),
    ),
    same("Neuron's own cache elsewhere", of(on("neuron")), of(on("neuron", NEURON_COMPILE_CACHE_URL="s3://b/c"))),
    same("which GPUs are visible", of(on("gpu")), of(on("gpu", CUDA_VISIBLE_DEVICES="1"))),
    same("Triton's own cache elsewhere", of(on("gpu")), of(on("gpu", TRITON_CACHE_DIR="/a"))),
    same("locale, terminal and user", PLAIN, of(env(LC_ALL="C.UTF-8", LANG="de_DE.UTF-8", TERM="dumb", USER="x"))),
    same(
        "settings of ejcache",
        PLAIN,
        of(env(EJCACHE_REPORT="1", EJCACHE_LOCAL_DIR="{tmp}/l", EJCACHE_LOCAL_MAX_SIZE="1GB")),
    ),
    same(
        "what is stored at all",
        PLAIN,
        of(enabled(max_size="1GB", min_compile_seconds=7, min_entry_size=1, read_only=True)),
    ),
    same("how much JAX says", PLAIN, of(config(jax_log_compiles=True, jax_explain_cache_misses=True))),
    same("how errors are shown", PLAIN, of(config(jax_traceback_filtering="off"))),
    # -- the process
    same("zstandard installed or not", PLAIN, of(assigned("jax._src.compilation_cache.zstandard", None))),
    same(
        "another seed of hashes",
        of(Process(python=("-B",), env=(("PYTHONHASHSEED", "1"),))),
        of(Process(python=("-B",), env=(("PYTHONHASHSEED", "2"),))),
    ),
    same("an optimised interpreter", PLAIN, of(Process(python=("-OO",)))),
    same(
        "unrelated programs compiled before",
        side("calling"),
        of(Process(history=(Case("elementwise"), Case("loop"), Case("dropping"), Case("random_numbers"))), "calling"),
    ),
    same(
        "another program used a shared helper before",
        side("calling"),
        of(Process(history=(Case("calling", arguments=(("times", 1),)),)), "calling"),
    ),
    same(
        "a helper is emitted twice, since a cache of JAX's gave way (jax#40312)",
        side("calling"),
        side("calling", forget=True),
    ),
    same(
        "private functions under other numbers (jax#38828)", side("calling"), side("calling", changes=("renumber:7",))
    ),
    same("work that nothing uses", side("dropping"), side("dropping", clips=3)),
    same("a second time in one process", PLAIN, of(Process(history=(Case(),)))),
    same("jaxlib installed elsewhere", PLAIN, of(Process(jaxlib="{tmp}/elsewhere/jaxlib"))),
    same("a plug-in installed elsewhere", of(plugin("{tmp}/p1", "a")), of(plugin("{tmp}/p2", "a"))),
    # -- how it is asked for
    same("called, and compiled ahead of time", side("elementwise"), side("elementwise", how="call")),
    same("jax.jit and ejit", side("elementwise"), side("elementwise", how="ejit")),
    same("a loop written with scan and with fori_loop", side("loop"), side("loop", way="fori")),
    same("a dictionary filled in another order", side("tree"), side("tree", order="ba")),
    same("NumPy's arrays and shapes alone", side("arguments"), side("arguments", numpy=True)),
    same("a static argument by number and by name", side("static_name"), side("static_name", way="names")),
    same("a loop that never changed, over and over", side("loop"), of(Process(history=(Case("loop"),) * 3), "loop")),
    # -- devices and ranks
    same("another device of the same kind", side("on_device", number=0), side("on_device", number=3)),
    same("another four devices", side("sharded"), side("sharded", devices=(4, 5, 6, 7))),
    same(
        "more devices in the process that the program does not use",
        side("on_device"),
        of(env(XLA_FLAGS="--xla_force_host_platform_device_count=2"), "on_device"),
    ),
    same("a collective on other devices", side("mapped"), side("mapped", devices=(2, 3))),
    same("rank 0 and rank 1, each on its own devices", of(Process(rank=0), "local"), of(Process(rank=1), "local")),
    same(
        "rank 0 and rank 1, each on its own last device",
        of(Process(rank=0), "local", kind="one"),
        of(Process(rank=1), "local", kind="one"),
    ),
    same("rank 0 and rank 1 of one program", of(Process(rank=0), "everywhere"), of(Process(rank=1), "everywhere")),
    same(
        "rank 0 and rank 1 of one program on a permuted mesh",
        of(Process(rank=0), "everywhere", order="reversed"),
        of(Process(rank=1), "everywhere", order="reversed"),
    ),
    same("a rank of a pod and a process alone", of(Process(rank=1), "local"), side("local")),
    # -- known: the same program, two keys
    same(
        "a flag set to what it is anyway",
        PLAIN,
        of(flags("--xla_cpu_enable_fast_math=false")),
        known="what is the default in one jaxlib is not in the next, and a table of defaults would have to be right",
    ),
    same(
        "all of XLA's own caches or none",
        of(Process(config=tuple(ALL_CACHES.items()))),
        of(config(jax_persistent_cache_enable_xla_caches="none")),
        known="JAX then sets xla_gpu_enable_llvm_module_compilation_parallelism too, which is no path",
    ),
    same(
        "an unknown flag among the arguments",
        PLAIN,
        of(with_argv("--xla_nobody_knows_this=1")),
        known="what is not known may matter",
    ),
    same(
        "an unknown variable of Neuron's",
        of(on("neuron")),
        of(on("neuron", NEURON_NOBODY_KNOWS_THIS="1")),
        known="what is not known may matter",
    ),
    same(
        "a function by another name",
        side("renamed"),
        side("renamed", name="other"),
        known="the name is in the executable, and profiles show it",
    ),
    same(
        "a helper written out where it was called",
        side("helpers"),
        side("helpers", edits=(("        @jax.jit\n        def helper", "        def helper"),)),
        known="inlining is the compiler's; another module is another program",
    ),
]

DIFFERENT = [
    # -- the program
    different("a constant", PLAIN, side(constant=3.0)),
    different("one element of a large constant", side("embedded"), side("embedded", last=1.0)),
    different("a shape", PLAIN, side(shape=(32, 32))),
    different("a type", PLAIN, side(dtype="bfloat16")),
    different(
        "float32 and int32", side("elementwise", operation="abs"), side("elementwise", operation="abs", dtype="int32")
    ),
    different("an operation", side("elementwise"), side("elementwise", operation="cos")),
    different("the function's name", side("renamed"), side("renamed", name="two")),
    different("a static argument", side("static"), side("static", power=3)),
    different("the length of a loop", side("loop"), side("loop", times=4)),
    different("unrolling", side("loop"), side("loop", unroll=3)),
    different("the body of one of two helpers of one name", side("helpers"), side("helpers", second=4.0)),
    different("two helpers of one name change places", side("helpers"), side("helpers", swapped=True)),
    different("how often a helper is called", side("calling"), side("calling", times=2)),
    different("a derivative of one's own", side("differentiated"), side("differentiated", custom=True)),
    different("what is rematerialised", side("rematerialised"), side("rematerialised", policy="all")),
    different("the precision of one product", side("dot"), side("dot", precision="highest")),
    different("the type a product is summed in", side("dot"), side("dot", result="float32")),
    different("a kernel's body", side("kernel"), side("kernel", factor=3)),
    different("an attribute of a foreign call", side("foreign", a=1), side("foreign", a=2)),
    different("an attribute more of a foreign call", side("foreign", a=1), side("foreign", a=1, b=1)),
    different("the target of a foreign call", side("foreign"), side("foreign", target="another_kernel")),
    different("a collective's axis", side("collective_order"), side("collective_order", axis="y")),
    different("which collective", side("mapped"), side("mapped", operation="ppermute")),
    # -- how it is compiled
    different("donation", side("aliased"), side("aliased", donate=(0,))),
    different("which argument is donated", side("aliased", donate=(0,)), side("aliased", donate=(1,))),
    different("unused arguments kept", side("unused"), side("unused", keep_unused=True)),
    different("the layout of an argument", side("laid_out"), side("laid_out", order=(1, 0))),
    different("the default precision of products", PLAIN, of(config(jax_default_matmul_precision="highest"))),
    different(
        "64 bits", side("elementwise", dtype="float64"), of(config(jax_enable_x64=True), "elementwise", dtype="float64")
    ),
    different(
        "the random generator", side("random_numbers"), of(config(jax_default_prng_impl="rbg"), "random_numbers")
    ),
    different(
        "random numbers that can be partitioned",
        side("random_numbers", shape=(4, 4)),
        of(config(jax_threefry_partitionable=False), "random_numbers", shape=(4, 4)),
    ),
    different("a compiler option", PLAIN, side(compiler_options=(("xla_cpu_enable_fast_math", True),))),
    different(
        "the value of a compiler option",
        side(compiler_options=(("xla_backend_optimization_level", 1),)),
        side(compiler_options=(("xla_backend_optimization_level", 2),)),
    ),
    different("the optimisation level", PLAIN, of(config(jax_optimization_level="O1"))),
    different("the level of fitting into memory", PLAIN, of(config(jax_memory_fitting_level="O3"))),
    different("another partitioner", side("sharded"), of(config(jax_use_shardy_partitioner=False), "sharded")),
    different("LLVM's expensive passes", PLAIN, of(config(jax_disable_most_optimizations=True))),
    # -- flags, each
    different("fast math", PLAIN, of(flags(FAST))),
    different("excess precision", PLAIN, of(flags(EXCESS))),
    different("the instruction set", PLAIN, of(flags(ISA))),
    different("another instruction set", of(flags(ISA)), of(flags("--xla_cpu_max_isa=SSE4_2"))),
    different("the width of vectors", PLAIN, of(flags("--xla_cpu_prefer_vector_width=128"))),
    different("the optimisation level of the back end", PLAIN, of(flags("--xla_backend_optimization_level=0"))),
    different("into how many parts code is split", PLAIN, of(flags("--xla_cpu_parallel_codegen_split_count=2"))),
    different("no threads in Eigen", PLAIN, of(flags("--xla_cpu_multi_thread_eigen=false"))),
    different(
        "the last of two values",
        of(flags(f"{EXCESS} --xla_allow_excess_precision=true")),
        of(flags(f"--xla_allow_excess_precision=true {EXCESS}")),
    ),
    different("a pass less", PLAIN, of(flags("--xla_disable_hlo_passes=cse"))),
    different(
        "a pass less than one less",
        of(flags("--xla_disable_hlo_passes=cse")),
        of(flags("--xla_disable_hlo_passes=cse,dce")),
    ),
    different("an option of the back end", PLAIN, of(flags("--xla_backend_extra_options=one=1"))),
    different(
        "options of the back end that add up",
        of(flags("--xla_backend_extra_options=one=1")),
        of(flags("--xla_backend_extra_options=one=1 --xla_backend_extra_options=two=2")),
    ),
    different(
        "an option's value",
        of(flags("--xla_backend_extra_options=one=1")),
        of(flags("--xla_backend_extra_options=one=2")),
    ),
    different("a dump that changes the executable", PLAIN, of(flags("--xla_dump_hlo_unoptimized_snapshots=true"))),
    different("a flag of the GPU on a GPU", of(on("gpu")), of(on("gpu", "--xla_gpu_deterministic_ops=true"))),
    different("the autotuner's level", of(on("gpu")), of(on("gpu", "--xla_gpu_autotune_level=0"))),
    different(
        "another content of a profile for the GPU's scheduler",
        of(profile_file("{tmp}/p3.pbtxt", "a")),
        of(profile_file("{tmp}/p3.pbtxt", "b")),
    ),
    different(
        "another content of the file of flags", of(flags_file("{tmp}/f3", FAST)), of(flags_file("{tmp}/f3", EXCESS))
    ),
    different("an XLA flag among the arguments", PLAIN, of(with_argv(FAST))),
    # -- variables, each
    different(
        "LIBTPU_INIT_ARGS on a TPU",
        of(on("tpu")),
        of(on("tpu", LIBTPU_INIT_ARGS="--xla_tpu_scoped_vmem_limit_kib=98304")),
    ),
    different(
        "a word of LIBTPU_INIT_ARGS that is no flag", of(on("tpu")), of(on("tpu", LIBTPU_INIT_ARGS="TPU_MEGACORE=1"))
    ),
    different("NEURON_CC_FLAGS on Neuron", of(on("neuron")), of(on("neuron", NEURON_CC_FLAGS="--optlevel=3"))),
    different(
        "the value of a Neuron flag", of(on("neuron", NEURON_CC_FLAGS="-O1")), of(on("neuron", NEURON_CC_FLAGS="-O3"))
    ),
    different(
        "trivial computations on Neuron's CPU",
        of(on("neuron")),
        of(on("neuron", NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU="1")),
    ),
    different("TF32 in NVIDIA's libraries", of(on("gpu")), of(on("gpu", NVIDIA_TF32_OVERRIDE="0"))),
    different("a variable that changes what Triton makes", of(on("gpu")), of(on("gpu", TRITON_F32_DEFAULT="ieee"))),
    # -- what compiles
    different(
        "the checkout moved, and the user wants metadata in the key",
        moved("one", config(**METADATA)),
        moved("other/deeper", config(**METADATA)),
    ),
    different("the platform", of(on("gpu")), of(on("tpu"))),
    different("one byte of one of jaxlib's libraries", PLAIN, of(Process(jaxlib="{tmp}/patched"))),
    different("another build of a plug-in", of(plugin("{tmp}/p1", "a")), of(plugin("{tmp}/p3", "b"))),
    different("a hook of the user's", PLAIN, of(assigned("jax._src.cache_key.custom_hook", "mine"))),
    different("the namespace", PLAIN, of(env(EJCACHE_NAMESPACE="after the incident"))),
    # -- devices
    different("how many devices", side("sharded"), side("sharded", devices=(0, 1), shape=(2, 1))),
    different("the shape of the mesh", side("sharded"), side("sharded", shape=(4, 1))),
    different("the mesh turned", side("sharded", shape=(4, 1)), side("sharded", shape=(1, 4))),
    different("the sharding of an argument", side("sharded"), side("sharded", spec=("y", "x"))),
    different("a dimension less sharded", side("sharded"), side("sharded", spec=("x", None))),
    different("the sharding of the result", side("sharded", out=("x",)), side("sharded", out=(None, "x"))),
    different("the kind of memory", side("sharded"), side("sharded", kind="pinned_host")),
    different("a permuted mesh", side("sharded"), side("sharded", devices=(1, 0, 3, 2))),
    different("a permuted mesh of a collective", side("mapped"), side("mapped", devices=(1, 0))),
    different(
        "a permuted mesh of two ranks",
        of(Process(rank=1), "everywhere"),
        of(Process(rank=1), "everywhere", order="reversed"),
    ),
    # -- PGLE
    different("with a profile", PLAIN, side(changes=("profile:a",))),
    different("another profile", side(changes=("profile:a",)), side(changes=("profile:b",))),
    different("the variant that PGLE makes", PLAIN, side(changes=("sentinel",))),
]

PAIRS = [*SAME, *DIFFERENT]
