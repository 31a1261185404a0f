# ruff: noqa: E501  # programs and their changes are tables of texts
"""Changes that must not matter: the start after them still traces nothing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from attack_inputs import _VECTOR

if TYPE_CHECKING:
    from attack_driver import Place


def variables_that_do_not_count(p: Place) -> None:
    """Variables that differ between starts of one job."""
    p.env = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "FLAG_A": "1"}
    p.program(f"""
def values():
    return [1]
{_VECTOR}""")
    for name in (
        *(
            "SSH_CONNECTION",
            "XDG_SESSION_ID",
            "DBUS_SESSION_BUS_ADDRESS",
            "TERM",
            "TERM_PROGRAM",
            "COLORTERM",
            "DISPLAY",
        ),
        *(
            "WAYLAND_DISPLAY",
            "TMUX_PANE",
            "VSCODE_IPC_HOOK",
            "_",
            "SHLVL",
            "PWD",
            "OLDPWD",
            "HOSTNAME",
            "POD_NAME",
            "NODE_NAME",
        ),
        *(
            "HOST_IP",
            "KUBERNETES_PORT",
            "REDIS_SERVICE_HOST",
            "REDIS_SERVICE_PORT_HTTP",
            "REDIS_PORT_80_TCP",
            "INVOCATION_ID",
        ),
        *("JOURNAL_STREAM", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PBS_JOBID", "PMI_FD", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "HF_TOKEN", "MY_SECRET_KEY", "DB_PASSWORD", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID"),
        *("WANDB_SERVICE", "WANDB_RUN_ID", "TRACEPARENT", "EJCACHE_REPORT_X", "COMPILE_FUNC_DIR", "SLURM_SUBMIT_HOST"),
        *("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "PMIX_SERVER_URI"),
    ):
        value = "/tmp/x" if name.endswith("DIR") else "1"
        p.twin(name, lambda q, name=name, value=value: q.env.__setitem__(name, value))
    p.twin("TMPDIR", lambda q: (q.path("tmp").mkdir(), q.env.__setitem__("TMPDIR", str(q.path("tmp")))))
    p.twin("a port of a service", lambda q: q.env.__setitem__("REDIS_PORT", "tcp://10.0.0.1:1"))
    p.twin("another device of as many", lambda q: q.env.__setitem__("CUDA_VISIBLE_DEVICES", "3"))


def files_that_do_not_count(p: Place) -> None:
    """Files that a job, a person or an editor leaves beside a program."""
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/my-data/a.yaml", "1")
    p.write("proj/outputs/a.yaml", "1")
    p.write("proj/w.npz", "1")
    p.program(f"""
def values():
    return [num("conf/a.yaml")]
{_VECTOR}""")
    for name in (
        *(
            "run.log",
            "events.out.tfevents.1",
            "checkpoints/step_100/state.json",
            "outputs/2026-01-01/config.yaml",
            "nohup.out",
        ),
        *(
            "outputs/a.yaml",
            "wandb/run/x.json",
            "mlruns/0/meta.yaml",
            "exp7/result.json",
            "exp7/inner/result.json",
            "notes.md",
        ),
        *(
            "plot.png",
            ".git/HEAD",
            ".git/config.json",
            ".vscode/settings.json",
            ".idea/x.xml",
            ".mypy_cache/3.12/x.json",
        ),
        *(
            ".pytest_cache/v/x.json",
            "__pycache__/main.cpython-312.pyc",
            ".ipynb_checkpoints/x.json",
            "w.npz",
            ".main.py.swp",
        ),
        *(
            "main.py~",
            "#main.py#",
            "core.1234",
            "slurm-12.out",
            "my-data/a.yaml",
            "my-data/b.yaml",
            "profile-1/x.json",
            ".DS_Store",
        ),
        *(
            "conf/.a.yaml.swp",
            "Makefile",
            "logs/train.txt",
            "results/metrics.csv",
            "lightning_logs/version_0/hparams.yaml",
        ),
        *(
            "runs/a/b/c.json",
            "ckpt.pkl",
            "notebook.ipynb",
            "conf/a.yaml.orig",
            "data/new.parquet",
            ".coverage",
            "lib64.so.1",
        ),
    ):
        p.twin(f"{name}", lambda q, name=name: q.write(f"proj/{name}", "7"))
    p.twin("the source is touched", lambda q: os.utime(q.path("proj/main.py"), (1, 1)))
    p.twin("configuration is touched", lambda q: os.utime(q.path("proj/conf/a.yaml"), None))
    p.twin("modes", lambda q: q.path("proj/main.py").chmod(0o755))
    p.twin("byte code goes", lambda q: shutil.rmtree(q.path("proj/__pycache__"), ignore_errors=True))
    p.twin("a link to nothing of interest", lambda q: q.link("proj/latest", "outputs"))
    p.twin("standard input", lambda q: setattr(q, "stdin", "hello"))
    p.twin("an empty directory", lambda q: q.path("proj/debug").mkdir())
    p.twin("a file outside that nobody reads", lambda q: q.write("out/x.json", "1"))


def jobs_that_write(p: Place) -> None:
    """A job that writes what jobs write, in the usual places, at each start."""
    p.write("proj/conf/a.yaml", "1")
    p.program(f"""
import time, tempfile, logging
stamp = str(time.time_ns())
for name in ("outputs/" + stamp + "/config.yaml", "logs/" + stamp + ".txt", "runs/" + stamp + "/args.json", "checkpoints/last.json",
             "results/metrics.csv", "wandb/run-" + stamp + "/config.yaml", "run_" + stamp + "/resolved.yaml", "train.log", "samples/" + stamp + ".png"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(stamp)
tempfile.mkdtemp()
def values():
    return [num("conf/a.yaml")]
{_VECTOR}""")
    p.twin("another start", lambda q: None)
    p.twin("and one with a run's name", lambda q: q.env.update(WANDB_RUN_ID="x"))


def fixed_hash_seed(p: Place) -> None:
    """PYTHONHASHSEED=0 at every start, as the list advises."""
    p.env["PYTHONHASHSEED"] = "0"
    p.program(f"""
def values():
    return [1]
{_VECTOR}""")
    p.twin("another start", lambda q: None)


def copied_with_its_store(p: Place) -> None:
    """The project, the store and the home at another place."""
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/pkg/__init__.py", "k = 1\n")
    p.program(f"""
import pkg
def values():
    return [num("conf/a.yaml"), pkg.k]
{_VECTOR}""")

    def moved(q: Place) -> None:
        shutil.copytree(q.path("proj"), q.path("x/y/proj"))
        q.cwd = "x/y/proj"

    p.twin("a copy", moved, several=False)
    p.twin("by a link", lambda q: (q.link("alias", "proj"), setattr(q, "cwd", "alias")), several=False)
