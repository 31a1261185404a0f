"""python -m bench.programs.direct_examples LIBRARY DIRECTORY: call each example of a library once, in direct mode.

The last line is JSON: for each example the verdict of direct mode, its sentence, and the digest of the results.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module


def main() -> None:
    library, directory = sys.argv[1:3]
    import jax
    import numpy as np

    import ejcache
    from ejcache.direct.verdicts import last_verdicts

    ejcache.enable(directory)
    answers = {}
    for example in import_module(f"bench.programs.direct_examples.{library}").examples():
        before = len(last_verdicts())
        jitted = ejcache.ejit(example.function, direct=True, **example.options)
        results = jitted(*example.arguments)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(results):
            plain = jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            digest.update(np.asarray(plain).tobytes())
        said = last_verdicts()[before:]
        answers[example.name] = {
            "verdict": str(said[0].verdict) if said else "none",
            "sentence": said[0].sentence if said else "direct mode said nothing",
            "digest": digest.hexdigest(),
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
