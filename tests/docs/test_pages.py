"""Every block of the pages in docs, run as it is written, in the order of its page; and what pages say is printed.

Places such as /opt/cache are moved into the test's directory. Buckets are on a server of loopback. `srun` starts the
command that it is given, once. The modules and files that pages name hold small programs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass

import pytest
from buckets import GcsServer
from capabilities import require
from cli_helpers import ejcache, key_text
from forking import ForkedWithChildren, forked_commands
from helpers import ROOT, run_program
from test_site import MADE

from ejcache import entry
from ejcache.autotune.records.shipped import GROUP
from ejcache.stores.local.store import LocalStore

PLACES = ("/tmp/my-cache", "/content/drive/MyDrive", "/opt/cache", "/shared/project", "/var/lib/node_exporter")
CLOUDS = ("gcloud ", '{"Version"', "aws ", "az ")
"""How blocks begin that are commands for a cloud, or policies of one; test_identities.py tests what they give."""
SHOWN = (
    "autotune/<",
    '{\n "ejcache": "autotune record"',
    "$ ejcache ls",
    *CLOUDS,
    "jit_train_step was compiled",
    '[project.entry-points."ejcache.seeds"]',
    "[tool.setuptools.package-data]",
    '[project.entry-points."fsspec.specs"]',
    "ejcache pull cache.tar",
    *("pip install .\nejcache run", "ejcache: saved 3.8", "%load_ext"),
    "import ejcache\n\nejcache.autotune.ejkernel.install()",
    *("envFrom:", "env:\n  - {name: EJCACHE, value", "env:\n  - {name: EJCACHE_DIR"),
    *("volumes: # of the pod\n  - {name: copies", "volumes: # of the pod\n  - {name: cache"),
    *("EJCACHE=gs://bucket/ci", "pytest --ejcache\n", "ejcache: saved 41", "ENV EJCACHE"),
    "ejcache tuned push my_kernels",
    "ejcache advise ",
    "ejcache recall ",
)
"""How blocks begin that are no programs here. Each of the first lines has a test of its own below. The others are
files of other programs, and commands that the tests of the README, examples, notebooks and the pytest plug-in run."""
COLD = {"autotune.md", "index.md"}
"""Pages that begin without a cache."""
TRAIN = """
import jax
import jax.numpy as jnp
import numpy as np
import ejcache


@ejcache.autotuned(configs=[{"chunk": 64}, {"chunk": 256}], name="chunked_sum", version=1)
def chunked_sum(x, *, chunk):
    return jax.lax.map(jnp.sum, x.reshape(-1, chunk)).sum()


@jax.jit
def evaluate(x):
    return jnp.tanh(x).sum()


@jax.jit
def train_step(x):
    return jnp.tanh(x @ x.T).sum()


if __name__ == "__main__":
    print(chunked_sum(np.ones(4096, np.float32)), train_step(np.ones((256, 256), np.float32)))
"""
SERVER = """
import jax
import jax.numpy as jnp


@jax.jit
def predict(x, lengths):
    return jnp.tanh(x).sum(axis=1) * lengths
"""


@dataclass(frozen=True)
class Block:
    """A block of a page: its number there, its language, and its text."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks() -> list[Block]:
    found = []
    for path in sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in MADE):
        each = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [Block(path.name, number, *block) for number, block in enumerate(each)]
    return found


BLOCKS = blocks()
RUN = [block for block in BLOCKS if not block.text.startswith(SHOWN)]
LONG = {"anywhere.md", "autotune.md", "places.md", "shared.md"}
"""Pages whose blocks only `make soak` runs: each is two dozen processes that compile or measure. Their commands have
tests of their own in test_cli_target.py, test_autotune_cli.py, test_cli_transfer.py and test_cli_bucket.py."""
PAGES = [pytest.param(page, marks=[pytest.mark.soak] * (page in LONG)) for page in sorted({each.page for each in RUN})]


def shown(beginning: str) -> str:
    """The text of the only block that begins so."""
    (block,) = [block for block in BLOCKS if block.text.startswith(beginning)]
    return block.text


@pytest.fixture(scope="module")
def server():
    """Google's protocol on loopback, with the buckets that pages name."""
    with GcsServer(buckets=["bucket", "my-bucket"]) as running:
        yield running


@pytest.fixture
def shell(tmp_path, bucket):
    """Run a text as a person's shell would, in a directory with a `train.py`, and return what it did."""
    commands = tmp_path / "bin"
    commands.mkdir()
    forked_commands(commands)
    (commands / "srun").write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done; exec "$@"\n')
    (commands / "srun").chmod(0o755)
    for place in PLACES:
        (tmp_path / place.lstrip("/")).mkdir(parents=True)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "shapes.txt").write_text("f32[8,128]\nf32[16,128]\n")
    (tmp_path / "results.json").symlink_to(ROOT / "tests/data/autotune/tables/tokamax-result.json")
    # As if it were installed.
    (tmp_path / "site" / "my_server").mkdir(parents=True)
    (tmp_path / "site" / "my_server" / "model.py").write_text(SERVER)

    def run(text: str):
        for place in PLACES:
            text = text.replace(place, f"{tmp_path}{place}")
        environment = {"PATH": f"{commands}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        environment["PYTHONPATH"] = str(tmp_path / "site")
        return run_program(["sh", "-eu", "-c", text], cwd=tmp_path, env=environment, timeout=600)

    return run


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A directory with the caches of a user who has run `train.py` once, and the file that was pushed then."""
    place = tmp_path_factory.mktemp("filled")
    (place / "train.py").write_text(TRAIN)
    env = {"HOME": str(place), "XDG_CACHE_HOME": str(place / ".cache")}
    for arguments in (["run", "--min-compile-seconds", "0", "train.py"], ["push", "warm.tar"]):
        run_program([sys.executable, "-m", "ejcache", *arguments], cwd=place, env=env, start=ForkedWithChildren)
    return place


@pytest.mark.timeout(1200)  # a page is a dozen processes
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, shell, filled, tmp_path, clean_environment):
    """Each block ends with status 0, after one run of the program with the cache that the page is about.

    The Python blocks of a page are one program.
    """
    if page == "anywhere.md":
        require("saved topologies")
    if page not in COLD:
        shutil.copytree(filled / ".cache", clean_environment / ".cache")
        shutil.copy(filled / "warm.tar", tmp_path / "content/drive/MyDrive")
    blocks = [block for block in RUN if block.page == page]
    program = "\n".join(block.text for block in blocks if block.language == "python")
    if program:
        shell(f"python - <<'THE_END'\n{program}\nTHE_END")
    for block in blocks:
        if block.language == "python":
            continue
        text = block.text
        if block.language == "cron":
            text = re.sub(r"^(\S+\s+){5}", "", text)
        shell(text)
        if text.startswith("export JAX_COMPILATION_CACHE_DIR=gs://my-bucket/compiled"):
            shell("ejcache run --dir gs://my-bucket/compiled --min-compile-seconds 0 train.py")


def test_every_block_is_run_or_shown():
    """No block is passed over: the beginnings of those that are not programs name one block each."""
    assert {block.language for block in RUN} <= {"sh", "python", "cron", ""}
    single = [beginning for beginning in SHOWN if beginning not in CLOUDS]
    found = [[block for block in BLOCKS if block.text.startswith(beginning)] for beginning in single]
    assert [len(each) for each in found] == [1] * len(single)
    assert all(any(block.text.startswith(beginning) for block in BLOCKS) for beginning in CLOUDS)


def test_where_a_record_is_and_what_it_holds(shell, clean_environment):
    """A tuned configuration is where docs/autotune.md says, and has the fields that it shows."""
    shell("python train.py")
    place = re.sub(r"<[^>]+>", "[^/]+", shown("autotune/<").strip())
    (record,) = [path for path in clean_environment.rglob("*.json") if re.search(f"/{place}$", str(path))]
    assert record.parent.parent.name == "chunked_sum"
    names = {name for name, _ in every_item(json.loads(record.read_text()))}
    said = set(re.findall(r'"(\w+)":', shown('{\n "ejcache"')))
    assert said - names - {"block"} == set()  # `block` is a parameter of the operation on the page


def every_item(value):
    if isinstance(value, dict):
        yield from value.items()
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from every_item(each)


def test_how_a_package_names_its_tuned_configurations():
    """The entry point on the page is in the group that is looked up, and names a directory by dots."""
    points = tomllib.loads(shown('[project.entry-points."ejcache.seeds"]'))["project"]["entry-points"]
    assert points == {GROUP: {"my_kernels": "my_kernels.tuned"}}
    own = tomllib.loads(shown('[project.entry-points."fsspec.specs"]'))["project"]["entry-points"]
    assert list(own) == ["fsspec.specs"]  # tests/stores/test_opening_shared.py opens one


def test_listing_of_variants(tmp_path):
    """`ls` shows the variants of a program as docs/pgle.md does, but for ages, sizes and digests."""
    profile = {"runs": 3, "percentile": 90, "devices": 8}
    with LocalStore(tmp_path) as store:
        for variant, seconds, extra in (("profiling", 58.9, {}), ("pgle", 61.2, {"profile": profile})):
            key = key_text("jit_step", variant=variant, platform="cuda")
            digest = "9f1c02ab" if extra else ""
            header = entry.Header(key=key, compile_seconds=seconds, extra=extra, profile_digest=digest)
            store.put(key, entry.encode(header, b"executable"))
        store.note_used(key)
        store.note_used(key)

    def words(text):
        text = re.sub(r"\d+(\.\d+)? M?B|\d+\w ago|[0-9a-f]{12}$", "N", text, flags=re.MULTILINE)
        # A pipe gets tabs, and the page shows what a terminal does.
        return [[cell for cell in re.split(r"\t|\s\s+", line.strip()) if cell] for line in text.splitlines()]

    said = ejcache("ls", "--dir", tmp_path).lines[:-1]
    command, *expected = shown("$ ejcache ls").splitlines()
    assert command == "$ ejcache ls"
    assert words("\n".join(said)) == words("\n".join(expected))


WHY = '''\
"""A model of twelve layers, each with three weights, trained by gradient descent."""
import jax
import jax.numpy as jnp

learning_rate = 0.001


def loss(weights, x):
    for first, second, third in weights:
        x = jnp.tanh(x @ first) @ second + third
    return (x**2).sum()


@jax.jit
def train_step(weights, x):
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - learning_rate * g, weights, gradients)


def model():
    layer = (jnp.ones((8, 8)), jnp.ones((8, 8)), jnp.ones(8))
    return [layer] * 12


def main():
    weights = model()
    x = jnp.ones((4, 8))

    # One step is enough to compile it.

    train_step(weights, x)


if __name__ == "__main__":
    main()
'''


@pytest.mark.soak
def test_why_a_learning_rate_was_compiled_anew(shell, tmp_path):
    """`why` answers what docs/causes.md shows, but for the time."""
    for text in (WHY, WHY.replace("0.001", "0.01")):
        (tmp_path / "train.py").write_text(text)
        shell("ejcache run --min-compile-seconds 0 train.py")
    said = shell("ejcache why train_step").stdout.replace(str(tmp_path), "/home/me").splitlines()
    *expected, compiled = shown("jit_train_step was compiled").splitlines()

    def timeless(line):
        return re.sub(r"\d+\w+ ago( in [\d.]+ s)?", "", line)

    assert list(map(timeless, said[: len(expected) + 1])) == list(map(timeless, [*expected, compiled]))
