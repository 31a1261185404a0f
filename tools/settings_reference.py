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

`ejcache config` shows the settings of this page, with their current values and where each value came from. An *entry*
is one compiled program in the cache. PGLE is JAX's profile-guided compilation on GPUs.

## Where a value comes from

If several places set the same setting, the first of these places counts:

1. the latest call in the program: `ejcache.enable(name=value)`, `jax.config.update("jax_…", value)` or
   `set_cache_dir()`
2. an option of the command line of `ejcache` (`--dir`, `--max-size` and others)
3. an environment variable. If several variables of a setting are set, the first one in the list of its variables below
   counts. For the cache directory, a path or URL in `EJCACHE` comes before all other variables
4. the user's configuration file, `~/.config/ejcache/config.toml` (or in `$XDG_CONFIG_HOME`)
5. the host's configuration file, `/etc/ejcache/config.toml`
6. the default

There are two exceptions to this order. First, what is stored with a cache overrules all of these places.
`ejcache config set --dir URL` stores limits with a cache that hosts share (`max_size`, `max_entries`, `older_than`,
`unused_for`) and the order of eviction (`evict`). If at least one limit is stored, jobs delete entries of this cache
only by the stored limits. The `max_size` of a job then only keeps the job from storing a larger entry. `enabled=false`
can be stored with any cache, and turns it off for all jobs: [commands for both](shared.md#its-size).

Second, `ALLOW_FULL_CACHE=1` stands for `min_entry_size=-1`, `min_compile_seconds=0` and `xla_caches="all"`. It comes
before the command line and all other variables, and after calls in the program.

Of all variables, only `EJCACHE` enables the cache. If `enabled` is false or `max_size` is 0, nothing is cached,
whatever the other settings say.

A wrong value in a variable `EJCACHE_…` or in a configuration file, such as `EJCACHE_READ_ONLY=maybe`, does not fail a
job. The job logs a warning, and uses the value of the next place in the list above. With a wrong value in a variable
`JAX_…`, `import jax` itself can fail. A command that works on a cache exits with status 2 if a setting has a wrong
value. If the program passes a wrong value to `ejcache.enable`, this call raises `ejcache.SettingError`.

## Configuration files

A configuration file is a TOML file with lines such as `max_size = "50GB"`. A line has the name of a setting of this
page, or of its JAX flag, and a value. `ejcache config set max_size=50GB` writes such a line, and
`ejcache config unset max_size` removes it. With `--to host`, these two commands change the host's configuration file.
`ejcache config get max_size` prints the value that counts. ejcache does not read a configuration file that other users
can write to. A configuration file cannot set the flags of PGLE, because JAX reads these flags itself.

## How values are written

* A **size** is a number of bytes, or a text such as `10GB` (decimal) or `10GiB` (binary). In its own variables, JAX
  accepts no unit: write `JAX_COMPILATION_CACHE_MAX_SIZE=10000000000`.
* A **boolean** in the environment is `true`, `yes`, `on`, `1`, `ok` or `easy`, or else `false`, `no`, `off` or `0`, in
  upper or lower case. In its own variables, JAX accepts neither `ok` nor `easy`.
* You can pass a setting that is a JAX flag to `ejcache.enable` also by the name of the flag.

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
