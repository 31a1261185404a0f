"""`python -m ejcache`."""

from __future__ import annotations

import sys

from ejcache.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
