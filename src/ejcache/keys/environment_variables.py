"""The environment variables that change what a compiler makes, in normal form. The environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ejcache.keys.flags import ContentDigest, canonical_flags, split_flags
from ejcache.util.words import Words

FlagsFile = Mapping[str, str]
"""Text of the files that variables name in place of flags, by path."""

_GPU_PLATFORMS: Final = frozenset({"gpu", "cuda", "rocm"})


# Read by cuBLAS, cuDNN and Triton while XLA compiles and autotunes; each changes the code or the algorithm chosen.
_GPU_VARIABLES: Final = """
    CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE CUDA_FORCE_PTX_JIT DISABLE_LLVM_OPT DISABLE_PTXAS_OPT
    NVIDIA_TF32_OVERRIDE TF_CUDNN_DETERMINISTIC TF_DETERMINISTIC_OPS
"""


# Triton's directories and what it prints; the beginnings of names.
_TRITON_IGNORED: Final = """
    TRITON_ALWAYS_COMPILE TRITON_CACHE_ TRITON_DUMP_ TRITON_ENABLE_LLVM_DEBUG TRITON_ENABLE_PYTHON_STACKTRACE
    TRITON_HOME TRITON_KERNEL_DUMP TRITON_LLVM_DEBUG_ONLY TRITON_PARTITION_SCHEDULING_ TRITON_PRINT_AUTOTUNING
    TRITON_REPRODUCER_PATH
"""


# What matters at run time only, what differs between the processes of a job, and where files are written.
_NEURON_IGNORED: Final = """
    NEURON_COMPILE_CACHE_URL NEURON_DUMP_ NEURON_FORCE_PJRT_PLUGIN_REGISTRATION NEURON_FRAMEWORK_DEBUG NEURON_LOG_
    NEURON_NUM_RECENT_MODELS_TO_KEEP NEURON_PARALLEL_COMPILE_ NEURON_PJRT_PROCESS NEURON_PROFILE NEURON_RT_
"""


class _NeuronKind(Words):
    """How the occurrences of one option of neuronx-cc become its effect."""

    SCALAR = """
        --auto-cast --auto-cast-type --distribution-strategy --logical-nc-config --model-type --optlevel --target
    """  # takes a value, and the last one decides (argparse)
    SWITCH = """
        --enable-experimental-O1 --enable-fast-context-switch --enable-fast-loading-neuron-binaries
        --enable-mixed-precision-accumulation --enable-saturate-infinity
    """
    DROPPED = "--cache_dir --cache-dir --dump --logfile --logfile-verbose --verbose"  # takes a value: caches and logs
    DROPPED_SWITCH = "--retry_failed_compilation"


_NEURON: Final = {name: kind for kind in _NeuronKind for name in kind.value.split()}


_NEURON_SHORT: Final = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "--lnc": "--logical-nc-config"}


def compile_variables(
    platform: str,
    environ: Mapping[str, str],
    *,
    flags_files: FlagsFile | None = None,
    content: ContentDigest | None = None,
) -> dict[str, str]:
    """Pick the variables of `environ` that change what the compiler of `platform` makes, in normal form.

    Args:
        platform: PJRT platform (`cpu`, `cuda`, `rocm`, `tpu`, `neuron`, a plug-in's).
        environ: the environment when the compiler read it.
        flags_files: text of the file that `XLA_FLAGS` names where it does not start with a dash; without it, such a
            value counts verbatim.
        content: as in `canonical_flags`.
    """
    variables: dict[str, str] = {}
    xla_flags = environ.get("XLA_FLAGS", "")
    if not xla_flags.lstrip(" \t\r\n").startswith("-") and flags_files:
        xla_flags = flags_files.get(xla_flags, xla_flags)
    if tokens := canonical_flags(split_flags(xla_flags), content=content):
        variables["XLA_FLAGS"] = _lines(tokens)
    name = platform.lower()
    if name not in ("cpu", *_GPU_PLATFORMS):
        # Only libtpu reads it, but a plug-in of another name may contain libtpu.
        from ejcache.keys.libtpu_flags import canonical_words, split_words  # on TPUs alone

        tokens = canonical_words(split_words(environ.get("LIBTPU_INIT_ARGS", "")), content=content)
        if tokens:
            variables["LIBTPU_INIT_ARGS"] = _lines(tokens)
    if name in _GPU_PLATFORMS:
        variables |= {known: environ[known] for known in _GPU_VARIABLES.split() if environ.get(known)}
        variables |= _beginning_with("TRITON_", environ, ignored=_TRITON_IGNORED)
    variables.update(neuron_variables(platform, environ))
    return dict(sorted(variables.items()))


def read_flags_file(environ: Mapping[str, str]) -> FlagsFile | None:
    """Return the text of the file that `XLA_FLAGS` names, by its path; nothing if it cannot be read, None if it names
    none.
    """
    path = environ.get("XLA_FLAGS", "")
    if not path.strip() or path.lstrip().startswith("-"):
        return None
    try:
        return {path: Path(path).read_text(encoding="utf-8")}
    except (OSError, ValueError):
        return {}


def neuron_variables(platform: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the `NEURON_*` variables that change what neuronx-cc makes, in normal form; none on another platform.

    `NEURON_CC_FLAGS` is brought into normal form. Run-time and per-process variables are left out. Every other
    `NEURON_*` variable counts verbatim, because an unknown one may matter.
    """
    if platform.lower() != "neuron":
        return {}
    variables = _beginning_with("NEURON_", environ, ignored=_NEURON_IGNORED)
    variables.pop("NEURON_CC_FLAGS", None)
    if tokens := _canonical_neuron_flags(environ.get("NEURON_CC_FLAGS", "")):
        variables["NEURON_CC_FLAGS"] = _lines(tokens)
    return dict(sorted(variables.items()))


def _beginning_with(prefix: str, environ: Mapping[str, str], *, ignored: str) -> dict[str, str]:
    """Return the variables whose names begin so, and with none of the ignored beginnings."""
    beginnings = tuple(ignored.split())
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(prefix) and value and not name.startswith(beginnings)
    }


def _lines(tokens: tuple[str, ...]) -> str:
    # A token may contain spaces (a quoted value), but never a line break.
    return "\n".join(tokens)


def _canonical_neuron_flags(text: str) -> tuple[str, ...]:
    """Return options of neuronx-cc in one form: the known ones by name, then the unknown ones in their order.

    The last value of an option counts, and options of caches and logs are dropped. A text with quotes comes back as it
    is, and so do the words of one with an abbreviated name.
    """
    if any(mark in text for mark in "'\"\\"):
        return (text,)
    words = text.split()
    known: dict[str, str] = {}
    unknown: list[str] = []
    at = 0
    while at < len(words):
        name, separator, value = words[at].partition("=")
        at += 1
        if name[:2] == "-O" and not separator and name[2:].isdigit():
            name, separator, value = "--optlevel", "=", name[2:]
        name = _NEURON_SHORT.get(name, name)
        kind = _NEURON.get(name)
        takes_value = kind in (_NeuronKind.SCALAR, _NeuronKind.DROPPED)
        if takes_value and not separator and at < len(words) and not words[at].startswith("-"):
            separator, value = "=", words[at]
            at += 1
        if (kind is _NeuronKind.DROPPED and separator) or kind is _NeuronKind.DROPPED_SWITCH:
            continue
        if takes_value and separator:
            known[name] = f"{name}={value}"
        elif kind is _NeuronKind.SWITCH and not separator:
            known[name] = name
        elif any(full.startswith(name) and full != name for full in _NEURON):
            # argparse accepts the beginning of an option's name, so the order of all of them may matter.
            return tuple(words)
        else:
            unknown.append(f"{name}{separator}{value}")
    return (*(known[name] for name in sorted(known)), *unknown)
