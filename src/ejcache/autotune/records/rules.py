"""The rules of one operation: a JSON document that people can read; `encode_rules` and `decode_rules` are pure.

    {"ejcache": "autotune rules", "schema": 1, "operation": …, "version": …,
     "portfolio": [configuration, …],
     "devices": [
      {"device": …, "environment": {…},
       "sizes": {"x.shape[0]": [least, most], …}, "types": {"x.type": [text, …], …},
       "rules": [{"if": ["x.shape[0] <= 64", "x.type is float32"], "use": 0, "held_out": 5, "worst": 1.04}, …],
       "learned": [digest of a call, …], "held_out": {digest of a call: slowdown or null, …}}],
     "checksum": "sha256:…"}

    condition = name " <= " number | name " is " text

`use` counts the configurations of the portfolio from 0. The first rule all of whose conditions hold says what to use;
the last one has no conditions. A slowdown is the time of what the rules say ÷ the best time in the record of the call,
null where the record has no time of it. `worst` is the largest of a rule for calls that were held out when it was
learned, null if there are none or one is null.

People who write rules by hand leave the checksum out (`document_frame`). Unknown fields are ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.document_frame import decode_document, encode_document
from ejcache.autotune.records.json_values import finite
from ejcache.autotune.records.record import ROOT, decisive, slug
from ejcache.errors import MALFORMED, EntryCorruptError, EntryForeignError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.autotune.records.record import RecordKey

KIND: Final = "autotune rules"
SCHEMA: Final = 1
MAX_RULES_BYTES: Final = 4 * 2**20
MOST_CONFIGURATIONS: Final = 10

GOOD: Final = 1.1
"""The slowdown up to which an answer without a measurement is good enough."""

_ARRAY: Final = re.compile(r"([A-Za-z0-9_]+)\[([0-9,]*)\]")
_PATH: Final = re.compile(ROOT + r"/[^/]+/rules-[0-9a-f]{8}\.json")
_AXIS: Final = re.compile(r"\.shape\[[0-9]+\]$")
WHOLE: Final = ".size"
"""How the name of a product of all sizes of an array ends."""


@dataclass(frozen=True, slots=True)
class Features:
    """The sizes and the types of a call, by names that people can read.

    Attributes:
        sizes: each size of each array, and each number; of an array with several sizes also their product.
        types: the data type of each array, and each text and boolean.
    """

    sizes: Mapping[str, float]
    types: Mapping[str, str]


def features(call: Mapping[str, Any]) -> Features:
    """The features of the call part of a key."""
    sizes: dict[str, float] = {}
    types: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{name}.{key}" if name else str(key), item)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                add(f"{name}[{number}]", item)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            sizes[name] = value
        elif isinstance(value, str) and (array := _ARRAY.fullmatch(value)):
            types[f"{name}.type"] = array[1]
            shape = (int(size) for size in array[2].split(",") if size)
            sizes.update({f"{name}.shape[{axis}]": size for axis, size in enumerate(shape)})
        else:
            types[name] = value if isinstance(value, str) else json.dumps(value)

    for part, value in call.items():
        add("" if part == "arguments" and isinstance(value, dict) else f"call.{part}", value)
    return with_products(Features(sizes, types))


def with_products(call: Features) -> Features:
    """The features with the product of the sizes of each array that has several."""
    shapes: dict[str, list[float]] = {}
    for name, size in call.sizes.items():
        if axis := _AXIS.search(name):
            shapes.setdefault(name[: axis.start()], []).append(size)
    products = {array + WHOLE: math.prod(shape) for array, shape in shapes.items() if len(shape) > 1}
    return Features({**call.sizes, **products}, call.types)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a rule asks of one size, which is at most `limit`, or of one type, which is this text."""

    name: str
    limit: float | str

    def holds(self, call: Features) -> bool:
        """True if the call fulfils it."""
        if isinstance(self.limit, str):
            return call.types.get(self.name) == self.limit
        return call.sizes.get(self.name, math.inf) <= self.limit

    def __str__(self) -> str:
        return f"{self.name} is {self.limit}" if isinstance(self.limit, str) else f"{self.name} <= {self.limit:.12g}"

    @classmethod
    def of(cls, text: str) -> Condition:
        """The condition of a text; raises `ValueError` for another text."""
        name, found, limit = text.rpartition(" <= ")
        if found:
            return cls(name, _number(limit))
        name, found, limit = text.partition(" is ")
        if not found:
            raise ValueError(f"{text!r} is not a condition")
        return cls(name, limit)


def _number(written: Any) -> float:
    value = finite(written)
    return int(value) if value.is_integer() else value


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls that fulfil all conditions use one configuration of the portfolio.

    Attributes:
        conditions: none for the last rule.
        use: the number of the configuration.
        held_out: so many calls that were held out fulfil it, and no rule before it.
        worst: the largest slowdown of these; None if it is not known.
    """

    conditions: tuple[Condition, ...]
    use: int
    held_out: int = 0
    worst: float | None = None

    @property
    def answers_alone(self) -> bool:
        """True if calls that were held out say that its configuration is good enough."""
        return self.worst is not None and self.worst <= GOOD


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """The rules for one kind of device.

    Attributes:
        device: as JAX names it.
        environment: the part of the environment that must be the same.
        sizes: the least and the most of each size of the calls of which the rules were learned.
        types: the texts of each type.
        rules: the first that holds counts.
        learned: the digests of the calls of which the rules were learned.
        held_out: the slowdown of each other call, by its digest.
    """

    device: str
    environment: Mapping[str, str]
    sizes: Mapping[str, tuple[float, float]]
    types: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...]
    learned: tuple[str, ...] = ()
    held_out: Mapping[str, float | None] = field(default_factory=dict)

    def outside(self, call: Features) -> str:
        """Why the call is not of the kind of those of which the rules were learned; empty if it is."""
        sizes = {name for name in call.sizes if not name.endswith(WHOLE)}
        if other := sorted((sizes ^ self.sizes.keys()) | (call.types.keys() ^ self.types.keys())):
            return f"it has other arguments: {', '.join(other)}"
        for name in sorted(sizes):
            least, most = self.sizes[name]
            if not least <= call.sizes[name] <= most:
                return f"{name} is {call.sizes[name]:.12g}, and not from {least:.12g} to {most:.12g}"
        for name, known in self.types.items():
            if call.types[name] not in known:
                return f"{name} is {call.types[name]}, and not {' or '.join(known)}"
        return ""

    def rule(self, call: Features) -> Rule:
        """The first rule that holds."""
        return next(rule for rule in self.rules if all(condition.holds(call) for condition in rule.conditions))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one operation.

    Attributes:
        operation: its name.
        version: its version.
        portfolio: configurations, JSON values, one of which is probably good for any call.
        devices: the rules for each kind of device.
    """

    operation: str
    version: str
    portfolio: tuple[Any, ...]
    devices: tuple[DeviceRules, ...]

    @property
    def path(self) -> str:
        """The path of the document."""
        return rules_path(self.operation, self.version)

    def outside(self, key: RecordKey) -> str:
        """Why the rules were not made of calls like this one, on its device; empty if they were."""
        found = self._for(key)
        if found is None:
            return f"they were not made on {key.device} with its versions and flags"
        return found.outside(features(key.call))

    def answer(self, key: RecordKey) -> tuple[Any, str]:
        """The configuration for a call that nothing was measured of, and why it is not to be used; empty if it is."""
        found, reason = self._for(key), self.outside(key)
        if found is None or reason:
            return None, reason
        rule = found.rule(features(key.call))
        if rule.answers_alone:
            return self.portfolio[rule.use], ""
        worst = "not known" if rule.worst is None else f"up to {rule.worst:.2f}"
        return None, f"their slowdown for calls like this one is {worst}, and not at most {GOOD:g}"

    def _for(self, key: RecordKey) -> DeviceRules | None:
        place = (key.device, decisive(key.environment))
        return next((item for item in self.devices if (item.device, item.environment) == place), None)


def rules_path(operation: str, version: str) -> str:
    """The path of the rules of an operation, beside its records."""
    digest = hashlib.sha256(json.dumps([operation, version]).encode()).hexdigest()[:8]
    return f"{ROOT}/{slug(operation)}/rules-{digest}.json"


def is_rules_path(path: str) -> bool:
    """True if a document under this path has rules, and no record."""
    return _PATH.fullmatch(path) is not None


def encode_rules(rules: Rules) -> bytes:
    """The document, ready to be written."""
    body = {
        "operation": rules.operation,
        "version": rules.version,
        "portfolio": list(rules.portfolio),
        "devices": [_device_body(item) for item in rules.devices],
    }
    return encode_document(body, kind=KIND, schema=SCHEMA)


def _device_body(item: DeviceRules) -> dict[str, Any]:
    return {
        "device": item.device,
        "environment": dict(item.environment),
        "sizes": {name: list(bounds) for name, bounds in item.sizes.items()},
        "types": {name: list(known) for name, known in item.types.items()},
        "rules": [
            {
                "if": [str(condition) for condition in rule.conditions],
                "use": rule.use,
                "held_out": rule.held_out,
                "worst": rule.worst,
            }
            for rule in item.rules
        ],
        "learned": list(item.learned),
        "held_out": dict(item.held_out),
    }


def decode_rules(data: bytes, *, path: str = "") -> Rules:
    """The rules in a document.

    Args:
        data: the document.
        path: where it was found; the rules of another operation do not belong there.

    Raises:
        EntryCorruptError: the document is truncated, changed, or holds no rules.
        EntryForeignError: it has the rules of another operation.
        EntryVersionError: this version does not read its schema.
    """
    body = decode_document(data, kind=KIND, schema=SCHEMA, max_size=MAX_RULES_BYTES)
    try:
        portfolio = tuple(body["portfolio"])
        rules = Rules(
            str(body["operation"]),
            str(body["version"]),
            portfolio,
            tuple(_device(item, len(portfolio)) for item in body["devices"]),
        )
    except MALFORMED as exc:
        raise EntryCorruptError(f"the rules are incomplete or malformed: {exc!r}") from exc
    conditions = [str(condition) for item in rules.devices for rule in item.rules for condition in rule.conditions]
    devices = [item.device for item in rules.devices]
    if not all(text.isprintable() for text in (rules.operation, rules.version, *devices, *conditions)):
        raise EntryCorruptError("a name in the rules has control characters, which would reach the terminal")
    if path and path != rules.path:
        raise EntryForeignError(f"the rules under {path} are those of {rules.operation}@{rules.version}")
    return rules


def _device(body: Any, configurations: int) -> DeviceRules:
    rules = tuple(_rule(item, configurations) for item in body["rules"])
    if not rules or rules[-1].conditions:
        raise ValueError("the last rule has conditions")
    return DeviceRules(
        device=str(body["device"]),
        environment={str(name): str(value) for name, value in body["environment"].items()},
        sizes={str(name): (_number(least), _number(most)) for name, (least, most) in body["sizes"].items()},
        types={str(name): tuple(map(str, known)) for name, known in body["types"].items()},
        rules=rules,
        learned=tuple(map(str, body.get("learned", ()))),
        held_out={str(name): _slowdown(value) for name, value in body.get("held_out", {}).items()},
    )


def _rule(body: Any, configurations: int) -> Rule:
    use = int(body["use"])
    if not 0 <= use < configurations:
        raise ValueError(f"a rule uses configuration {use} of {configurations}")
    return Rule(
        tuple(Condition.of(text) for text in body["if"]),
        use,
        int(body.get("held_out", 0)),
        _slowdown(body.get("worst")),
    )


def _slowdown(value: Any) -> float | None:
    return None if value is None else finite(value)
