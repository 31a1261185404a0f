"""How long a program is likely to compile: what its last compilation by this user on this host took."""

from __future__ import annotations

from ejcache.keys.key import listed_name, parse_any_key

__all__ = ["last_compile_seconds", "program_in_words"]


def last_compile_seconds(name: str) -> float | None:
    """The seconds that the last program of this name took, or None if the miss log has none."""
    from ejcache.cache.miss_log import read_misses  # only long waits and long compilations need it

    return next((miss.compile_seconds for miss in read_misses() if listed_name(miss.name) == listed_name(name)), None)


def program_in_words(key: str) -> str:
    """`jit_train_step (92 s last time)`: for lines that are logged while a compilation takes long. Never raises."""
    name = parse_any_key(key).name
    took = last_compile_seconds(name)
    return name if took is None else f"{name} ({took:.0f} s last time)"
