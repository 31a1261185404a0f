"""The examples: programs run, and what other machines run is well formed and names commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from forking import Forked, ForkedWithChildren, ForkedWithFrameworks
from helpers import ROOT, run_program
from users import command_of

from ejcache.cli.main import COMMANDS, load_command
from ejcache.settings.described import SETTINGS

EXAMPLES = ROOT / "examples"
SCRIPTS = [path for path in sorted(EXAMPLES.rglob("*")) if path.suffix in {".sh", ".yml", ".yaml", ".toml"}]
SCRIPTS.append(EXAMPLES / "docker" / "Dockerfile")


@pytest.mark.soak
def test_training_programs_and_the_kernel_that_is_tuned(tmp_path):
    """Both programs train; the kernel's record, pushed into its package, answers where nothing may be measured."""
    package = tmp_path / "site" / "tuned_kernel"
    shutil.copytree(EXAMPLES / "tuned_kernel" / "tuned_kernel", package)
    programs = "import flax_train, equinox_train, runpy; flax_train.main(); equinox_train.main()"
    tune = "runpy.run_module('tuned_kernel.tune', run_name='__main__')"
    path = {"PYTHONPATH": f"{EXAMPLES}:{package.parent}"}
    done = run_program([sys.executable, "-c", f"{programs}; {tune}"], cwd=tmp_path, env=path, start=Forked)
    *losses, configuration = done.stdout.splitlines()
    assert [float(re.match(r"loss ([\d.]+); saved", line)[1]) < 20 for line in losses] == [True, True]
    assert "'block'" in configuration

    text = (EXAMPLES / "tuned_kernel" / "pyproject.toml").read_text()
    (push,) = [line.removeprefix("#").split("#")[0] for line in text.splitlines() if "tuned push" in line]
    run_program([sys.executable, "-m", *shlex.split(push)], cwd=package.parent, env=path, start=Forked)
    about = package.parent / "tuned_kernel-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tuned-kernel\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(re.search(r"\[project.*?seeds.*?\n(.*?)#", text, re.DOTALL)[1])
    points = (about / "entry_points.txt").read_text().replace('"', "")
    (about / "entry_points.txt").write_text(f"[ejcache.seeds]\n{points}\n")
    chosen = "from tuned_kernel import *; print(scaled_add.choose(*example()).source)"
    elsewhere = {**path, "EJCACHE_AUTOTUNE_DIR": str(tmp_path / "empty"), "EJCACHE_AUTOTUNE_POLICY": "error"}
    assert run_program([sys.executable, "-c", chosen], cwd=tmp_path, env=elsewhere, start=Forked).stdout == "seed\n"


def test_a_trainer_that_resumes(tmp_path):
    """Its third start goes on from the checkpoint, traces no step, and compiles nothing.

    The second one is an interpreter with addresses and a seed of hashes of its own: it proves what the first recorded.
    """
    small = "Path(sys.argv[1]), resume_training.Config(width=8, depth=1)"
    program = f"import resume_training, sys; from pathlib import Path; resume_training.main({small})"
    command = [sys.executable, "-c", program, tmp_path / "checkpoint"]
    environment = {"EJCACHE_DIR": str(tmp_path / "cache"), "EJCACHE_REUSE_CHECK_ONE_IN": "0"}
    environment |= {"EJCACHE_MIN_COMPILE_SECONDS": "0", "PYTHONPATH": str(EXAMPLES)}
    kinds = ForkedWithFrameworks, subprocess.Popen, ForkedWithFrameworks
    outputs = [run_program(command, env=environment, start=kind).stdout for kind in kinds]
    assert ["tracing the step" in each for each in outputs] == [True, True, False]
    assert [f"step {count}, loss" in each for count, each in zip((10, 20, 30), outputs, strict=True)] == [True] * 3
    assert " 0 misses" in outputs[2]


@pytest.mark.parametrize(
    "user", [pytest.param(None, id="of-the-builder", marks=pytest.mark.soak), pytest.param(1234, id="of-another-user")]
)
def test_image_that_starts_warm(open_place, user):
    """What the Dockerfile runs makes the server's programs hits in a cache that is only read, for whoever runs it.

    The other user has neither a name nor a home.
    """
    become = [] if user is None else command_of(user)
    place = open_place / "image"
    place.mkdir(mode=0o755)
    open_place.chmod(0o755)
    shutil.copy(EXAMPLES / "serving.py", place)
    lines = (EXAMPLES / "docker" / "Dockerfile").read_text().replace("/opt/cache", f"{place}/opt/cache").splitlines()
    environment = {}
    for line in lines:
        instruction, _, rest = line.partition(" ")
        if instruction == "ENV":
            environment |= dict([rest.split("=", 1)])
        elif instruction == "RUN" and rest.startswith("ejcache"):
            run_program(
                [sys.executable, "-m", *shlex.split(rest)], cwd=place, env=environment, start=ForkedWithChildren
            )
    (command,) = [line.partition(" ")[2] for line in lines if line.startswith("CMD")]
    assert yaml.safe_load(command) == ["python", "serving.py"]
    # Programs of one operation, around those that were prepared, are below the floor or the only misses.
    if user is not None:
        environment["HOME"] = "/nowhere"
    done = run_program([*become, sys.executable, "serving.py"], cwd=place, env=environment)
    assert "it is not used" not in done.stderr
    assert len(re.findall(r"^\d+ \[", done.stdout, re.MULTILINE)) == 6
    assert int(re.search(r"(\d+) hits?", done.stdout)[1]) >= 3, done


@pytest.mark.soak
def test_two_hosts_and_one_bucket(tmp_path):
    """The second host loads all that the first one has compiled."""
    first, second = run_program([sys.executable, EXAMPLES / "one_bucket.py"], cwd=tmp_path).stdout.splitlines()
    assert re.search(r"first: .*: 0 hits, [1-9]\d* misses", first)
    assert re.search(r"second: .*: [1-9]\d* hits, 0 misses", second)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_commands_exist(path):
    """Every command of ejcache in the file exists, and so does each of its options."""
    for words in re.findall(r"\bejcache(?:,? )((?:[a-z\"'-][^\n;&|\]`]*))", path.read_text()):
        names = [word.strip("\"',") for word in re.split(r"[\s,]+", words) if word.strip("\"',")]
        command = load_command(names.pop(0)) if names[0] in COMMANDS else None
        while names and hasattr(command, "commands") and names[0] in command.commands:
            command = command.commands[names.pop(0)]
        if command is not None and command.name != "run":
            options = {option for parameter in command.params for option in parameter.opts}
            assert [name for name in names if name.startswith("--") and name.partition("=")[0] not in options] == []


@pytest.mark.soak
def test_what_make_demo_runs_is_warm_the_second_time(tmp_path):
    """Each line of the Makefile, one after the other: the first start compiles, the second one loads all of it."""
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for line in makefile.splitlines() if line.startswith("\t") and "examples/training_step.py" in line]
    commands = [shlex.split(line.partition("$(BIN)/ejcache ")[2]) for line in lines]
    assert [command[0] for command in commands] == ["run", "run"]
    (tmp_path / "examples").mkdir()
    shutil.copy(EXAMPLES / "training_step.py", tmp_path / "examples")
    home = {"XDG_CACHE_HOME": str(tmp_path / "home")}
    cold, warm = (
        run_program([sys.executable, "-m", "ejcache", *command, "1"], cwd=tmp_path, env=home) for command in commands
    )
    assert re.search(r"^  compile or load +[0-9.]+ s$", cold.stdout, re.MULTILINE)
    assert "0 hits" in cold.stderr
    assert re.search(r"[1-9]\d* hits?, 0 misses", warm.stderr)
    assert cold.stdout.splitlines()[-1] == warm.stdout.splitlines()[-1]  # the loss


def test_jobs_are_well_formed():
    """The shell reads the script of Slurm; each job of Kubernetes has a container with an image and a command."""
    run_program(["sh", "-n", EXAMPLES / "slurm.sh"])
    jobs = list(yaml.safe_load_all((EXAMPLES / "gke_job.yaml").read_text()))
    assert [(job["apiVersion"], job["kind"], job["metadata"]["name"]) for job in jobs] == [
        ("batch/v1", "Job", "compile"),
        ("batch/v1", "Job", "train"),
    ]
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["image"]
        assert container["command"][0] == "ejcache"
        assert {each["name"] for each in container["env"]} == {"JAX_COMPILATION_CACHE_DIR"}
    (job,) = yaml.safe_load_all((EXAMPLES / "kubernetes_job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    names = {each["name"] for each in container["env"]}
    known = {variable for setting in SETTINGS for variable in setting.variables} | {"EJCACHE", "AWS_ENDPOINT_URL"}
    assert names <= known
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
