"""Prints the page about the settings, from their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.settings.described import SETTINGS
from ejcache.settings.table import Floors
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from ejcache.settings.described import Setting

_PAGE_HEAD = """\
# Settings

`ejcache config` shows every setting on this list with its current value and where the value came from.

## Where a value comes from

If several places set the same setting, the first of these places counts:

1. a call in the program: `ejcache.enable(name=value)`, `jax.config.update("jax_…", value)` or `set_cache_dir()`. The
   latest call counts;
2. the command line of `ejcache` (`--dir`, `--max-size` and others). `ejcache run` passes these options to every
   process of the program as environment variables;
3. an environment variable. If several variables of a setting are set, the first one in the list of its variables below
   counts. For the cache directory, a path or URL in `EJCACHE` comes before all other variables. Only the variable
   `EJCACHE` switches the cache on; the other variables do not;
4. the user's configuration file, `~/.config/ejcache/config.toml` (or in `$XDG_CONFIG_HOME`);
5. the host's configuration file, `/etc/ejcache/config.toml`;
6. the default.

There are two exceptions to this order. A setting that turns caching off (`enabled=False` or `max_size=0`) overrules all
others. `ALLOW_FULL_CACHE=1` stands for `min_entry_size=-1`, `min_compile_seconds=0` and `xla_caches="all"`, unless the
program itself sets one of these three settings.

A value that a setting cannot have, such as `EJCACHE_READ_ONLY=maybe`, does not fail a job. The job uses the value of
the next place in the list above and logs a warning once. A command that works on a cache exits with status 2 instead,
and `ejcache config` first shows all settings. If a call in the program passes a value that a setting cannot have,
ejcache raises `ejcache.SettingError`.

## Configuration files

A configuration file is a TOML file with lines such as `max_size = "50GB"`. Each line has the name of a setting of this
page, or of its JAX flag, and a value. `ejcache config set max_size=50GB` writes such a line, and
`ejcache config unset max_size` removes it. `ejcache config get max_size` prints the value that counts. With
`--to host`, these commands change the host's configuration file. ejcache does not read a configuration file that other
users can write to. A configuration file cannot set the flags of PGLE, because JAX reads these flags itself.

## How values are written

* **Sizes** are a number of bytes, or a text such as `10GB` (decimal) or `10GiB` (binary). In JAX's own variables, JAX
  accepts no unit: write `JAX_COMPILATION_CACHE_MAX_SIZE=10000000000`.
* **Booleans** in the environment are `true`, `yes`, `on`, `1`, `ok`, `easy`, or `false`, `no`, `off`, `0`, in upper or
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
