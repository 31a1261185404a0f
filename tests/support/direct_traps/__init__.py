"""The staleness traps of direct mode: `trap.py` says what one is, `cases/` has them all, `run.py` leads them."""
