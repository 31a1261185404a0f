"""`python -m ejcache`."""

from __future__ import annotations

import sys

from ejcache.cli.entry import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, to which `-m` leads: nothing is imported from a cache that lies there
    sys.exit(main())
