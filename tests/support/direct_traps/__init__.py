"""The staleness traps of direct mode: small programs, each changed in a way that a fingerprint could overlook.

    python -m direct_traps --mode direct|jit|ejkernel [--only NAME…] [--group GROUP…] [--json FILE]

(with `tests/support` on PYTHONPATH). `trap.py` says what a case is, `cases/` has them all, `child.py` runs one phase of
one case, `server.py` forks such children, `run.py` leads cases through their phases, `report.py` judges and prints.
"""
