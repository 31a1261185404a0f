"""Describes the CPU of this host as code generators see it, for the keys of programs that are compiled for it."""

from __future__ import annotations

import hashlib
import platform as python_platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import jaxlib.version

from ejcache.jax_integration.lowering.native_libraries import native_libraries
from ejcache.keys.environment_variables import compile_variables, read_flags_file
from ejcache.settings.environment import all_variables, environment_variable
from ejcache.util.cores import cores


def cpu_features() -> str:
    """Describe the CPU of this host as code generators see it: architecture, model and instructions, in one line.

    From `/proc/cpuinfo` on Linux and `sysctl` on macOS; otherwise from Python's `platform`.
    """
    machine = python_platform.machine().lower()
    if python_platform.system() == "Darwin":
        names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features", "hw.optional")
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(["sysctl", *names], capture_output=True, text=True, timeout=10, check=False)
            if lines := sorted(listed.stdout.splitlines()):
                return f"{machine} {'; '.join(lines)}"
    with suppress(OSError):
        if described := canonical_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")):
            return f"{machine} {described}"
    return f"{machine} {python_platform.processor()}"


# Flags that Linux lists although they add no instruction: they say how the kernel and the hypervisor run the CPU, and
# change with an update of the kernel or the microcode, and between virtual machines of one kind. No pattern: to compile
# one of this size takes longer than the key of a program.
_NO_INSTRUCTIONS: Final = """
    hypervisor rep_good nopl xtopology cpuid md_clear pti flush_l1d l1tf ssbd virt_ssbd apic xapic 2apic x2apic arat pln
    pts dtherm ida epb acpi tm tm2 pbe vmx svm vnmi vpid tpr_shadow flexpriority npt nrip_save tsc_scale vmcb_clean
    flushbyasid decodeassists pausefilter pfthreshold avic vgif overflow_recov succor smca mce mca mtrr pat pge pcid
    invpcid_single cat_l2 cat_l3 cdp_l2 cdp_l3 rdt_a mba osvw topoext skinit wdt tce bpext ibs extapic cr8_legacy
    cmp_legacy ht monitor dtes64 ds_cpl ds est xtpr pdcm dca sdbg smep smap umip la57 bus_lock_detect split_lock_detect
    tsxldtrk_kernel xsaveerptr user_shstk
"""

_NO_INSTRUCTIONS_BEGIN: Final = (
    *("tsc_", "arch_", "retpoline", "ibrs", "ibpb", "stibp", "amd_"),
    *("spec_", "srso", "hwp", "ept", "pse", "cqm"),
)

_NO_INSTRUCTIONS_END: Final = ("_tsc", "vmload")


# The fields that identify the model of the CPU, and those that list instruction sets, on x86 and ARM.
_MODEL_FIELDS: Final = (
    *("vendor_id", "cpu family", "model", "isa", "uarch"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
)

_FLAG_FIELDS: Final = ("flags", "Features")


def canonical_cpuinfo(text: str) -> str:
    """Model and instruction sets in the text of `/proc/cpuinfo`, the same for any number of cores and any clock."""
    models: set[str] = set()
    instructions: set[str] = set()
    no_instructions = set(_NO_INSTRUCTIONS.split())
    # Every core repeats the same lines.
    for line in dict.fromkeys(text.splitlines()):
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _MODEL_FIELDS:
            models.add(f"{name} {value}")
        elif name in _FLAG_FIELDS:
            instructions.update(
                flag
                for flag in value.split()
                if flag not in no_instructions
                and not flag.startswith(_NO_INSTRUCTIONS_BEGIN)
                and not flag.endswith(_NO_INSTRUCTIONS_END)
                and "perf" not in flag
            )
    return "; ".join([*sorted(models), " ".join(sorted(instructions))]) if models or instructions else ""


@cache
def cpu_identity() -> str:
    """Return the CPU of this host as code generators see it."""
    return hashlib.sha256(cpu_features().encode()).hexdigest()


@cache
def cpu_threads() -> str:
    """Name the cores and the variable by which jaxlib before 0.11 splits loops on a CPU; empty for a newer one."""
    if jaxlib.version.__version_info__ >= (0, 11):
        return ""

    # XLA does not split the loops if it has one thread or one core.
    return f"{cores()} cores, NPROC={environment_variable('NPROC') or ''}"


def components_of_cpu() -> dict[str, str]:
    """Make the components of keys of programs that this host compiles for its CPU, but those of its devices."""
    variables = all_variables()
    from ejcache.keys.file_digests import content_digest  # the door to files that have to be read

    said = compile_variables("cpu", variables, flags_files=read_flags_file(variables), content=content_digest)
    found = {
        "jaxlib": str(jaxlib.version.__version__),
        "native_libraries": native_libraries("cpu"),
        "variables": "\n".join(f"{name}={value}" for name, value in said.items()),
        "cpu": cpu_identity(),
    }
    return found | ({"threads": cpu_threads()} if cpu_threads() else {})
