"""Two hosts and one bucket, on this machine: the second host loads what the first one compiled.

    python one_bucket.py

The bucket is a server on loopback (tools/gcs_server of this repository), and each host is a process with a disk of its
own. With a real bucket, leave out `STORAGE_EMULATOR_HOST`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import jax, jax.numpy as jnp, ejcache
cache = ejcache.enable()
step = jax.jit(jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)))
step(jnp.ones((64, 64)), jnp.ones((8, 64)))
print(cache.stats())
"""


def host(name, directory, address):
    """Run the program as the host `name` would."""
    environment = {
        "EJCACHE_DIR": "gs://bucket/compiled",
        "EJCACHE_LOCAL_DIR": f"{directory}/{name}",
        "EJCACHE_MIN_COMPILE_SECONDS": "0",  # the programs of this example are quick; without it, few are published
        "STORAGE_EMULATOR_HOST": address,
        "XDG_STATE_HOME": f"{directory}/{name}/state",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, stdout=-1, check=True)
    print(f"{name}: {done.stdout.decode().strip()}")


def main():
    sys.path.insert(0, str(ROOT / "tools"))
    from gcs_server import GcsServer

    with GcsServer(buckets=["bucket"]) as server, tempfile.TemporaryDirectory() as directory:
        for name in ("first", "second"):
            host(name, directory, server.url)


if __name__ == "__main__":
    main()
