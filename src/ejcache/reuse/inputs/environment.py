"""The environment: every variable counts but those of a closed list, which docs/reuse.md has with reasons."""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ejcache.settings.environment import all_variables
from ejcache.settings.start import variables_at_start

if TYPE_CHECKING:
    from collections.abc import Iterable

_SESSION: Final = ("SSH_*", "XDG_*", "DBUS_*", "TERM*", "COLORTERM", "DISPLAY", "WAYLAND_DISPLAY", "TMUX*", "VSCODE_*")
_SHELL: Final = ("_", "SHLVL", "PWD", "OLDPWD")
_HOST: Final = ("HOSTNAME", "POD_*", "NODE_NAME", "HOST_IP")
_SERVICES: Final = ("KUBERNETES_*", "*_SERVICE_HOST", "*_SERVICE_PORT*", "*_PORT_*_TCP*")
_UNIT: Final = ("INVOCATION_ID", "JOURNAL_STREAM")
_SCHEDULER: Final = ("SLURM*", "PBS_*", "PMI*")
_RENDEZVOUS: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_R*")
_CREDENTIALS: Final = ("*_TOKEN", "*_SECRET*", "*_PASSWORD", "*_API_KEY", "AWS_ACCESS_KEY_ID")
_RUN: Final = ("WANDB_SERVICE", "WANDB_RUN_ID", "TRACEPARENT", "TMPDIR")
_OURS: Final = ("EJCACHE", "EJCACHE_*", "COMPILE_FUNC_DIR", "JAX_COMPILATION_CACHE_*", "JAX_PERSISTENT_CACHE_*")
"""They say where and what is cached, and change no program; what changes one is a setting of JAX, and is compared."""

AT_START: Final = " at the start"
"""Follows the name of a variable that the program has changed since."""

NOT_COUNTED: Final = (
    *(*_SESSION, *_SHELL, *_HOST, *_SERVICES, *_UNIT, *_SCHEDULER),
    *(*_RENDEZVOUS, *_CREDENTIALS, *_RUN, *_OURS),
)
COUNTED: Final = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "*_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "USER", "PATH"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS*", "SLURM_NPROCS", "SLURM_NNODES"),
    *("SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_*", "SLURM_CPUS_PER_*", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_PER_*"),
    *("SLURM_GPUS_ON_NODE", "SLURM_ARRAY_TASK_*", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_*", "PMIX_RANK"),
    *("PBS_ARRAY_INDEX", "PBS_ARRAYID", "PBS_NUM_*", "PBS_NP", "PBS_NODENUM", "PBS_TASKNUM", "PBS_VNODENUM"),
)
"""They count although the list above names them: ranks, counts and the index of an array."""

_LEFT_OUT: Final = re.compile(
    "|".join(["*".join(map(re.escape, each.split("*"))).replace("*", ".*") for each in NOT_COUNTED])
)
_KEPT: Final = re.compile("|".join(["*".join(map(re.escape, each.split("*"))).replace("*", ".*") for each in COUNTED]))
_DEVICES: Final = re.compile(r"(CUDA|ROCR|HIP|NVIDIA|TPU)_VISIBLE_(DEVICES|CHIPS)")


def environment(ignored: Iterable[str] = ()) -> tuple[dict[str, str], str]:
    """Return the variables that count, each with 16 bits of its digest, and one digest over all.

    Both count: what they are now, and what the process was started with.

    Args:
        ignored: patterns of further names that do not count.
    """
    patterns = tuple(ignored)
    marks: dict[str, str] = {}
    whole = hashlib.sha256()
    now = all_variables()
    taken = [(name, value) for name, value in variables_at_start().items() if now.get(name) != value]
    both = [(name, name, value) for name, value in now.items()]
    both += [(name, f"{name}{AT_START}", value) for name, value in taken]
    for plain, name, value in sorted(both):
        if not _counts(plain, value) or any(fnmatchcase(plain, pattern) for pattern in patterns):
            continue
        # Which devices they are differs between hosts.
        counted = str(len([each for each in value.split(",") if each])) if _DEVICES.fullmatch(plain) else value
        text = f"{len(name)} {name}={len(counted)} {counted}\n".encode("utf-8", "surrogateescape")
        whole.update(text)
        marks[name] = hashlib.sha256(text).hexdigest()[:4]
    return marks, whole.hexdigest()


def _counts(name: str, value: str) -> bool:
    if _KEPT.fullmatch(name):
        return True
    if name.endswith("_PORT") and value.startswith("tcp://"):
        return False
    return _LEFT_OUT.fullmatch(name) is None
