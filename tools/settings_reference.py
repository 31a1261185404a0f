"""Prints the page about the settings, from their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.settings.floors import Floors
from ejcache.settings.table import SETTINGS
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from ejcache.settings.parsers import Setting

_PAGE_HEAD = """\
# Settings

`ejcache config` shows every setting on this list with its current value and where the value came from.

## Where a value comes from

The first of these that sets a value wins:

1. a call in the program: `ejcache.enable(name=value)`, `jax.config.update("jax_…", value)`, `set_cache_dir()`. Among
   calls, the latest wins;
2. the command line of `ejcache` (`--dir`, `--max-size` …), which `ejcache run` passes on to every process of the
   program as environment variables;
3. the environment variables of the setting, in the order in which they are listed here: `EJCACHE_` and its name, then
   names that JAX and EasyDeL use. A directory or URL in `EJCACHE` goes before the others that name the cache. None of
   these but `EJCACHE` enables the cache;
4. the user's configuration file, `~/.config/ejcache/config.toml` (or in `$XDG_CONFIG_HOME`);
5. the host's configuration file, `/etc/ejcache/config.toml`;
6. the default.

Two rules come on top. A setting that disables caching overrules everything else: `enabled=False` or `max_size=0`.
`ALLOW_FULL_CACHE=1` stands for `min_entry_size=-1`, `min_compile_seconds=0` and `xla_caches="all"`, unless the program
itself sets one of these three.

`EJCACHE_READ_ONLY=maybe` and other values that a setting cannot have do not fail a job: the setting keeps the value of
the next layer, the job logs a warning once, and `ejcache config` exits with 1. The same value in a call or on the
command line raises `ejcache.SettingError`.

## Configuration files

A line of such a file is `max_size = "50GB"`: the name of a setting of this page, or of its JAX flag, and a value, in
TOML. `ejcache config set max_size=50GB` writes it, `ejcache config get max_size` prints the value that counts, and
`ejcache config unset max_size` removes the line; `--to host` means the host's file. A file that other users can write
to is not read. A file cannot set what PGLE profiles: JAX reads that itself.

## How values are written

* **Sizes**: a number of bytes, or text such as `10GB` (decimal) or `10GiB` (binary). JAX reads its own variables too,
  and accepts no unit there: write `JAX_COMPILATION_CACHE_MAX_SIZE=10000000000`.
* **Booleans** in the environment: `true`, `yes`, `on`, `1`, `ok`, `easy` and `false`, `no`, `off`, `0`, in upper or
  lower case. In JAX's own variables, JAX accepts neither `ok` nor `easy`.
* Every setting that is a JAX flag can also be passed to `ejcache.enable` by the name of the flag.

## All settings
"""


def _default(setting: Setting) -> str:
    if setting.name == "dir":
        return "`~/.cache/ejcache` (`$XDG_CACHE_HOME/ejcache` if that is set)"
    if setting.name == "min_compile_seconds":
        return f"{Floors()} ([minimum compile times](shared.md#minimum-compile-times))"
    if setting.default is None or setting.default == ():
        return "not set"
    if setting.name == "local_max_size":
        return f"{format_size(setting.default)} (`{setting.default}`)"
    return f"`{setting.default!r}`"


def page() -> str:
    """Return the whole page."""
    parts = [_PAGE_HEAD]
    for setting in SETTINGS:
        rows = [f"### `{setting.name}`\n", f"{setting.doc[0].upper()}{setting.doc[1:]}.\n"]
        rows.append(f"* accepted: {setting.accepted}")
        rows.append(f"* default: {_default(setting)}")
        if setting.variables:
            rows.append(f"* environment: {', '.join(f'`{name}`' for name in setting.variables)}")
        if setting.flag:
            rows.append(f"* JAX flag: `{setting.flag}`")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
