"""Prints the page about the settings, from their table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ejcache.settings.described import SETTINGS
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from ejcache.settings.described import Setting

_PAGE_HEAD = """\
# Settings

`ejcache config` shows the settings of this page, their current values, and where each value comes from. An *entry* is
one compiled program in the cache. PGLE is JAX's profile-guided compilation on GPUs. A *tunable kernel* is a function
with the decorator `@ejcache.autotuned`: it can run with several configurations, such as block sizes
([tuned configurations](autotune.md)).

## Where a value comes from

If several places set the same setting, the first of these places counts:

1. the latest call in the program: `ejcache.enable(name=value)`, `jax.config.update("jax_…", value)` or JAX's
   `set_cache_dir()`
2. an option of the command line of `ejcache` (`--dir`, `--max-size` and others)
3. an environment variable
4. the user's configuration file: `~/.config/ejcache/config.toml`, or `ejcache/config.toml` in `$XDG_CONFIG_HOME`
5. the host's configuration file, `/etc/ejcache/config.toml`
6. the default

If several variables of a setting are set, the first one in the list of its variables below counts. For the setting
`dir`, a directory or URL in `EJCACHE` comes before all other variables.

There are two exceptions to this order. First, limits that are stored with a cache overrule all of these places.
`ejcache config set --dir URL` stores limits (`max_size`, `max_entries`, `older_than`, `unused_for`) and the order of
eviction (`evict`) with a cache that hosts share. If at least one limit is stored, jobs delete entries of this cache
only by the stored limits. A job still does not store an entry that is larger than the job's own `max_size`.
`ejcache config set --dir URL enabled=false` turns a cache off for all jobs. It also works for a cache
in a local directory. [One cache for many hosts](shared.md#its-size) describes these commands.

Second, `ALLOW_FULL_CACHE=1` stands for `min_entry_size=-1`, `min_compile_seconds=0` and `xla_caches="all"`. It comes
before the command line and all other variables, and after calls in the program.

Of all variables, only `EJCACHE` enables the cache. Set it to `1`, or to the directory or URL of the cache; a directory
must contain a slash. If `enabled` is false or `max_size` is 0, no programs are cached, whatever the other settings say.
Tuned configurations are stored nevertheless.

A wrong value in a variable `EJCACHE_…` or in a configuration file does not fail a job that you start with `python`. An
example is `EJCACHE_READ_ONLY=maybe`. The job logs a warning, and uses the next value in the order above. If the wrong
value is the URL of the cache, the job caches no programs instead. `ejcache run` exits with status 2 if the value of
`EJCACHE` is wrong. Commands that open a cache, such as `ejcache ls`, exit with status 2 if the value of any setting is
wrong. With a wrong value in a variable `JAX_…`, `import jax` itself can fail. If the program passes a wrong value to
`ejcache.enable`, this call raises `ejcache.UsageError`.

## Configuration files

A configuration file is a TOML file with lines such as `min_compile_seconds = 0.1`. A line has the name of a setting of
this page, or of its JAX flag, and a value. `ejcache config set min_compile_seconds=0.1` writes such a line, and
`ejcache config unset min_compile_seconds` removes it. With `--to host`, these two commands change the host's
configuration file. `ejcache config get preload` prints the current value of `preload`. If any user can write to a
configuration file, ejcache does not read it. A configuration file cannot set `enable_pgle`, `pgle_profiling_runs`
and `pgle_aggregation_percentile`, because JAX itself reads their flags.

## How values are written

* A **size** is a number of bytes, or a text such as `10GB` (decimal) or `10GiB` (binary). In its own variables, JAX
  accepts no unit: write `JAX_COMPILATION_CACHE_MAX_SIZE=10000000000`.
* A **boolean** in the environment is true as `true`, `t`, `yes`, `y`, `on`, `1`, `ok` or `easy`, and false as `false`,
  `f`, `no`, `n`, `off` or `0`. Upper and lower case mean the same. In its own variables, JAX accepts neither `ok` nor
  `easy`.
* `ejcache.enable` takes each setting by its name. If a setting has a JAX flag, `ejcache.enable` also takes the name of
  the flag.

## All settings
"""


_UNSET: Final = re.compile(r" \(unset: (.*)\)$")
"""The end of the meaning of a setting that has no one value if nobody sets it."""


def _default(setting: Setting) -> str:
    if setting.name == "dir":
        return (
            "`~/.cache/ejcache`, or `ejcache` in `$XDG_CACHE_HOME`; if this directory cannot be made, `ejcache-…` among"
            " the temporary files, where `…` is the user id"
        )
    if unset := _UNSET.search(setting.doc):
        more = " ([minimum compile times](shared.md#minimum-compile-times))"
        return unset[1] + more * (setting.name == "min_compile_seconds")
    if setting.default is None or setting.default == ():
        return "not set"
    if setting.name == "local_max_size":
        return f"{format_size(setting.default)} (`{setting.default}`)"
    return f"`{setting.default!r}`"


def page() -> str:
    """Return the whole page."""
    parts = [_PAGE_HEAD]
    for setting in SETTINGS:
        doc = _UNSET.sub("", setting.doc)
        rows = [f"### `{setting.name}`\n", f"{doc[0].upper()}{doc[1:]}.\n"]
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
