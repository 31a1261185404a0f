"""`ejcache target`: saves what a compiler must know of the devices here; lists, shows and compares what is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.chosen_cache import command_settings
from ejcache.cli.options import Dir, Json, argument, examples, flag
from ejcache.errors import EntryError, UsageError
from ejcache.stores.documents import open_documents
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from ejcache.jax_integration.devices.targets import DeviceTarget


app = typer.Typer(
    help="Save and compare devices, to compile for them on other hosts.", no_args_is_help=True, rich_markup_mode=None
)


Named = Annotated[str, argument("NAME", "A saved target, or a slice of TPUs such as tpu:v5e:4x4.")]


@app.command(short_help="Save the devices of this host, or of its job.", epilog=examples("target save v5p-128"))
def save(
    name: Annotated[str, argument("NAME", "The name of the target.")],
    distributed: Annotated[bool, flag("--distributed", "Join the job first, by jax.distributed.initialize().")] = False,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Write to the cache what a compiler must know of the devices of this host: topology, versions, flags and CPU.

    Run this command where the program will run, with the flags of the program. For a program of one process, run it
    once. For a job of several processes, run it with --distributed on every rank: the lowest rank writes. This command
    needs JAX 0.11 or later.
    """
    settings = command_settings(directory)
    from ejcache.jax_integration.devices.targets import save_target  # JAX itself

    if distributed:
        from ejcache.jax_integration.seam.coordination_service import initialize_job  # JAX itself

        initialize_job()
    saved = save_target(name, str(settings.dir))
    if as_json:
        output.print_json(_fields(saved))
    else:
        output.say(_line(saved))


@app.command("ls", short_help="List the saved targets.", epilog=examples("target ls"))
def list_targets(directory: Dir = None, as_json: Json = False) -> None:
    """List the targets that are saved with the cache."""
    from ejcache.jax_integration.devices.targets import MAX_BYTES, decode  # JAX itself

    documents = open_documents(str(command_settings(directory).dir), read_only=True)
    found: list[DeviceTarget] = []
    for path in sorted(documents.list("targets/")):
        try:
            found.append(decode(documents.read(path, max_size=MAX_BYTES) or b""))
        except EntryError as exc:
            output.warn(f"{path} cannot be read: {exc}")
    documents.close()
    if as_json:
        output.print_json({"targets": [_fields(each) for each in found]})
        return
    for each in found:
        output.say(_line(each))


@app.command(short_help="Show a target.", epilog=examples("target show v5p-128"))
def show(name: Named, directory: Dir = None, as_json: Json = False) -> None:
    """Show the devices, versions and flags of a target."""
    found = find_devices(name, directory)
    if as_json:
        output.print_json(_fields(found))
        return
    fields = _fields(found)
    fields["memory"] = format_size(found.memory) if found.memory else ""
    fields["created"] = output.moment(found.saved) if found.saved else ""
    output.print_pairs([(key, str(value)) for key, value in fields.items() if value])


@app.command(short_help="Compare a target with this host.", epilog=examples("target diff v5p-128"))
def diff(
    name: Named,
    devices: Annotated[bool, flag("--devices", "Also compare the devices of this host.")] = False,
    directory: Dir = None,
    as_json: Json = False,
) -> int:
    """Compare the keys of a target with those that this host makes, and print which parts of the keys differ.

    A host that compiles for the target must have the target's versions and native libraries. `ejcache warm --target`
    uses the flags and variables of a saved target, whatever this host has. On a host that runs the programs, the flags,
    the variables and the devices must be the same, too: use --devices there. Exits with 1 if something differs.
    """
    found = find_devices(name, directory)
    from ejcache.jax_integration.devices.targets import components_here, components_of, devices_of  # JAX itself

    there = components_of(found, devices_of(found) if devices else ())
    if not there:
        raise UsageError(
            f"the name {name} says nothing of a compiler: compare the devices with --devices, or compare a target that "
            "`ejcache target save` has written where the devices are"
        )
    here = components_here(found.platform, with_devices=devices)
    rows = [{"component": each, "target": there[each], "here": here.get(each, "")} for each in sorted(there)]
    differing = [row for row in rows if row["target"] != row["here"]]
    if as_json:
        output.print_json({"target": found.name, "agree": not differing, "components": rows})
    else:
        for row in rows:
            output.say(f"{row['component']}: {'differs' if row in differing else 'same'}")
            if row in differing:
                output.print_pairs([("  target", row["target"]), ("  here", row["here"])])
    return int(bool(differing))


def find_devices(name: str, directory: str | None) -> DeviceTarget:
    from ejcache.jax_integration.devices.targets import find_target  # JAX itself

    return find_target(name, str(command_settings(directory).dir) if directory is not None else None)


def _line(target: DeviceTarget) -> str:
    processes = plural(target.processes, "process", "processes")
    return f"{target.name}: {target.devices} x {target.device_kind} of {processes}"


def _fields(target: DeviceTarget) -> dict[str, Any]:
    fields = target._asdict()
    created = fields.pop("saved")
    return {**fields, "created": created, "topology": len(target.topology)}
