"""The table of commands, and the application made of them.

Importing the modules of all commands takes longer than most commands take, so only that of the wanted one is imported.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from ejcache.cli.options import examples, flag, option
from ejcache.wings import Command, load, wings

_CORE: Final = {
    "run": Command(
        "ejcache.cli.run:run",
        "Run a program with the cache.",
        ("run train.py --steps 100", "run --dir gs://bucket/prefix -m my_project.train"),
    ),
    "warm": Command(
        "ejcache.cli.warm:warm",
        "Compile programs before a run needs them.",
        (
            "warm train.py:step --shapes 'f32[8,128] i32[8]'",
            "warm train.py:step --shapes @shapes.txt -j 8",
            "warm train.py --steps 1",
        ),
    ),
    "target": Command(
        "ejcache.cli.targets:app",
        "Save and compare devices to compile for elsewhere.",
        ("target save v5p-128", "target diff v5p-128", "warm train.py:steps --target v5p-128"),
    ),
    "stats": Command(
        "ejcache.cli.entries:stats",
        "Show what the cache holds, its hits and its misses.",
        ("stats", "stats --dir gs://my-bucket/compiled --json"),
    ),
    "ls": Command(
        "ejcache.cli.entries:ls", "List the entries.", ("ls --sort size --limit 10", "ls --name 'jit_train*'")
    ),
    "show": Command("ejcache.cli.entries:show", "Show one entry.", ("show jit_train_step", "show 50a34c --json")),
    "why": Command(
        "ejcache.cli.explain:why",
        "Say why a program was compiled rather than loaded.",
        ("why", "why jit_train_step --full", "why --since 2h"),
    ),
    "prune": Command(
        "ejcache.cli.maintain:prune",
        "Remove entries by size, number, age, name or version.",
        ("prune --max-size 10GB --dry-run", "prune --unused-for 30d --yes"),
    ),
    "verify": Command(
        "ejcache.cli.checks:verify",
        "Check every entry, and repair; or the records of direct mode.",
        ("verify", "verify --fix", "verify --direct train.py --steps 1"),
    ),
    "clear": Command(
        "ejcache.cli.maintain:clear", "Remove all entries, or those that are named.", ("clear", "clear jit_eval")
    ),
    "pin": Command("ejcache.cli.maintain:pin", "Keep an entry from being removed.", ("pin jit_train_step",)),
    "unpin": Command("ejcache.cli.maintain:unpin", "Let a pinned entry be removed again.", ("unpin jit_train_step",)),
    "config": Command(
        "ejcache.cli.configuration:app",
        "Show every setting, its value and its source.",
        ("config", "config set max_size=10GB", "config get cache_dir"),
    ),
    "push": Command(
        "ejcache.cli.transfer:push",
        "Copy entries to another cache.",
        ("push gs://my-bucket/compiled", "push /mnt/shared --used-within 7d --dry-run"),
    ),
    "pull": Command("ejcache.cli.transfer:pull", "Copy entries from another cache.", ("pull gs://my-bucket/compiled",)),
    "export": Command(
        "ejcache.cli.transfer:export",
        "Write entries into one file, a bundle.",
        ("export compiled.ejb", "export train.ejb --name 'jit_train*'"),
    ),
    "import": Command(
        "ejcache.cli.transfer:import_bundle", "Copy the entries of a bundle into the cache.", ("import compiled.ejb",)
    ),
    "doctor": Command(
        "ejcache.cli.checks:doctor",
        "Check whether a directory or bucket can hold a cache.",
        ("doctor", "doctor --dir gs://my-bucket/compiled"),
    ),
    "bench": Command(
        "ejcache.cli.bench:bench",
        "Time a program's starts beside JAX's own cache.",
        ("bench train.py --steps 2", "bench --rounds 9 -m my_project.train"),
    ),
    "demo": Command(
        "ejcache.cli.demo:demo", "Run a training step cold and warm, and compare.", ("demo", "demo --blocks 8")
    ),
    "completion": Command(
        "ejcache.cli.options:completion", "Print a script for completion in the shell.", ("completion bash",)
    ),
}

COMMANDS: Final = _CORE | {name: command for wing in wings() for name, command in wing.commands.items()}
"""The commands of the core and of the wings."""


def build(only: str | None = None) -> typer.Typer:
    """The application with the command of that name, or with all commands if none has it."""
    app = typer.Typer(
        name="ejcache",
        help="The persistent compilation cache and autotune store for JAX.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(
        epilog="Exit status: 0 fine, 1 something was found, failed or does not exist, 2 bad usage. "
        "Sizes: 500000, 10GB (decimal), 10GiB (binary). Ages: 90s, 15m, 36h, 14d.\n\n"
        + examples("run train.py", "stats", "why jit_train_step", "help prune")
    )(_root)
    wanted = {only: COMMANDS[only]} if only in COMMANDS else COMMANDS
    for name, command in wanted.items():
        target = load(command.place)
        shown: dict[str, Any] = {"short_help": command.short_help, "epilog": examples(*command.examples)}
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, **shown)
        else:
            app.command(name, **shown, **getattr(sys.modules[target.__module__], "REGISTRATION", {}).get(name, {}))(
                target
            )
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from ejcache._version import __version__

        typer.echo(f"ejcache {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, flag("--version", "-V", "Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    directory: Annotated[str | None, option("--dir", "URL", "The same as --dir of COMMAND.")] = None,
    verbose: Annotated[
        bool, flag("--verbose", "-v", "Also print what is logged, on stderr; before or after COMMAND.")
    ] = False,
    quiet: Annotated[
        bool, flag("--quiet", "-q", "Print no progress and no warnings; before or after COMMAND.")
    ] = False,
) -> None:
    """Keep the programs that JAX compiles, so that the next start loads them."""
