"""A process of `ejcache advise --measure`: `python -m ejcache.cli.programs.block_worker`.

request := {"text": module, "details": {…}}         compile this program as it is, and with loops
answer  := {"written_out": seconds, "looped": seconds}
         | {"apart": reason}                        it has no blocks that can be loops
"""

from __future__ import annotations

import json
import sys

from ejcache.util.worker_processes import answering


def main() -> None:
    """Serve the requests."""
    with answering() as answer:
        from ejcache.jax_integration.block_seconds import block_seconds
        from ejcache.jax_integration.lowering.block_copies import Apart

        for line in sys.stdin:
            request = json.loads(line)
            try:
                found = block_seconds(request["text"], request["details"])
            except Apart as exc:
                answer(apart=str(exc))
            except Exception as exc:
                # Of XLA, or of a text that MLIR cannot read.
                answer(apart=f"{type(exc).__name__}: {str(exc).partition(chr(10))[0][:200]}")
            else:
                answer(written_out=found.written_out, looped=found.looped)


if __name__ == "__main__":
    main()
