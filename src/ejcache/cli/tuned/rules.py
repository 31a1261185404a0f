"""`ejcache tune --rules`: rules of an operation, made of its records; `--check`: what these do not bear out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.autotune.making_rules import made_rules, problems
from ejcache.autotune.records.json_values import canonical_json
from ejcache.cli import output
from ejcache.cli.tuned.records import named_layer, open_autotune, strongest
from ejcache.errors import NotFoundError, StoreError
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.records.rules import DeviceRules, Rules


def make_rules(operation: str, directory: str | None, *, as_json: bool) -> int:
    """Make the rules of an operation of its records, keep them beside these, and say what they lack."""
    with open_autotune(directory, write=True, must_exist=True) as store:
        records = [item.record for item in strongest(store.records(operation=operation))]
        rules = made_rules(records, operation)
        layer = named_layer(store)
        if not layer.publish_rules(rules):
            raise StoreError(f"the rules of {operation} could not be written to {layer.documents.url}")
    found = problems(rules, records)
    _print(rules, layer.documents.url, found, as_json=as_json)
    return 0


def check_rules(operation: str, directory: str | None, *, as_json: bool) -> int:
    """Print what in the rules of an operation its records do not bear out; 1 if there is something."""
    with open_autotune(directory) as store:
        layer = named_layer(store)
        rules = [item for item in layer.each_rules() if item.operation == operation]
        if not rules:
            raise NotFoundError(f"{layer.documents.url} has no rules of {operation}")
        records = [item.record for item in strongest(store.records(operation=operation))]
    status = 0
    for item in rules:
        found = problems(item, records)
        _print(item, layer.documents.url, found, as_json=as_json)
        if not (found or as_json):
            held_out = sum(len(device.held_out) for device in item.devices)
            output.say(f"the records bear out the rules, with {plural(held_out, 'call')} held out")
        status |= bool(found)
    return status


def _print(rules: Rules, url: str, found: list[str], *, as_json: bool) -> None:
    if as_json:
        output.print_json({
            "url": url,
            **output.fields_of(rules, "path", "operation", "version"),
            "portfolio": list(rules.portfolio),
            "devices": [_fields(item) for item in rules.devices],
            "problems": found,
        })  # fmt: skip
        return
    configurations = plural(len(rules.portfolio), "configuration")
    output.say(f"{rules.operation}@{rules.version}: a portfolio of {configurations}, in {url}/{rules.path}")
    output.print_table(
        ("device", "if", "configuration", "held out", "worst"),
        [row for item in rules.devices for row in _rows(rules, item)],
        right=("held out", "worst"),
    )
    for problem in found:
        output.warn(problem)


def _rows(rules: Rules, item: DeviceRules) -> Iterator[tuple[str, ...]]:
    for rule in item.rules:
        conditions = " and ".join(map(str, rule.conditions)) or "otherwise"
        worst = "?" if rule.worst is None else f"{rule.worst:.3f}"
        yield item.device, conditions, canonical_json(rules.portfolio[rule.use]), str(rule.held_out), worst


def _fields(item: DeviceRules) -> dict[str, Any]:
    return {
        "device": item.device,
        "environment": dict(item.environment),
        "total_learned": len(item.learned),
        "total_held_out": len(item.held_out),
        "rules": [
            {
                "if": [str(condition) for condition in rule.conditions],
                **output.fields_of(rule, "use", "held_out", "worst", "answers_alone"),
            }
            for rule in item.rules
        ],
    }
