"""Picks the environment variables that change what a compiler makes, in normal form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.keys.flags import ContentDigest

    FlagsFile = Mapping[str, str]
    """Text of the files that variables name in place of flags, by path."""

_GPU_PLATFORMS: Final = ("gpu", "cuda", "rocm")

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
    variables: dict[str, str] = {}  # a token may contain spaces (a quoted value), but never a line break
    xla_flags = environ.get("XLA_FLAGS", "")
    if not xla_flags.lstrip(" \t\r\n").startswith("-") and flags_files:
        xla_flags = flags_files.get(xla_flags, xla_flags)
    if xla_flags:
        from ejcache.keys.flags import canonical_flags, split_flags  # the door to flags

        tokens = canonical_flags(split_flags(xla_flags), content=content)
        variables |= {"XLA_FLAGS": "\n".join(tokens)} if tokens else {}
    name = platform.lower()
    # Only libtpu reads it, but a plug-in of another name may contain libtpu.
    if name not in ("cpu", *_GPU_PLATFORMS) and (libtpu_flags := environ.get("LIBTPU_INIT_ARGS", "")):
        from ejcache.keys.accelerators import canonical_words, split_words  # the door to accelerators

        tokens = canonical_words(split_words(libtpu_flags), content=content)
        variables |= {"LIBTPU_INIT_ARGS": "\n".join(tokens)} if tokens else {}
    if name in _GPU_PLATFORMS:
        variables |= {known: environ[known] for known in _GPU_VARIABLES.split() if environ.get(known)}
        variables |= _beginning_with("TRITON_", environ, ignored=_TRITON_IGNORED)
    if name == "neuron":
        # Every variable that is not known to matter at run time only, because an unknown one may matter.

        from ejcache.keys.accelerators import IGNORED_VARIABLES, canonical_options  # the door to accelerators

        variables |= _beginning_with("NEURON_", environ, ignored=IGNORED_VARIABLES)
        variables.pop("NEURON_CC_FLAGS", None)
        if tokens := canonical_options(environ.get("NEURON_CC_FLAGS", "")):
            variables["NEURON_CC_FLAGS"] = "\n".join(tokens)
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


def _beginning_with(prefix: str, environ: Mapping[str, str], *, ignored: str) -> dict[str, str]:
    """Return the variables whose names begin so, and with none of the ignored beginnings."""
    beginnings = tuple(ignored.split())
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(prefix) and value and not name.startswith(beginnings)
    }
