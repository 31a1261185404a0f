"""Draws waits of a random length, and leaves the random numbers of the program alone.

Functions of the module `random` draw from one generator, which belongs to the program: a program that calls
`random.seed(0)` would get other numbers whenever a thread of ejcache waited in between. The system's numbers have no
state, so that processes that are forked do not wait equally long, either.
"""

from __future__ import annotations

import secrets
from typing import Final

_RANDOM: Final = secrets.SystemRandom()


def between(least: float, most: float) -> float:
    """Return a number from `least` to `most`, each as likely as the others. Threads may call it at the same time."""
    return _RANDOM.uniform(least, most)
