"""Records that are damaged, or exchanged for those of other functions, are run: a miss, and never another result."""

from __future__ import annotations

import pytest
from direct_traps.run import Server
from direct_traps.trap import PRELUDE, PROGRAM

pytest.importorskip("ejcache.direct")

TEXT = """
import copy, json
import ejcache
from ejcache.direct import records as record_store
from ejcache.direct.records import decode_document, encode_document
from ejcache.direct.verdicts import last_verdicts

def donating(x, y):
    return x + y, y * 2
def whole(x, y):
    return {"a": x.astype(jnp.int32)}
def flat(x, y):
    return x * 3, y @ x

SIZE = {donating: 4, whole: 4, flat: 4}
ARGUMENTS = lambda: (jnp.arange(4.0), jnp.ones(4))
EXPECTED = {each: jax.tree.map(np.asarray, jax.jit(each)(*ARGUMENTS())) for each in SIZE}

VALUES = (None, -1, "", [], {}, 1 << 70, "x" * 9, [0], True)

damage = None
def decode(raw):
    if damage is None:
        return decode_document(raw)
    about = json.loads(raw)
    for each in about["records"]:
        each["fastpath"] = json.loads(each["fastpath"])
    damage(about["records"][0])
    for each in about["records"]:
        each["fastpath"] = json.dumps(each["fastpath"])
        each["bound"] = __import__("hashlib").sha256(f"{each['entry']} {each['fastpath']}".encode()).hexdigest()
    return decode_document(json.dumps(about).encode())
record_store.decode_document = decode

def start(function):
    jax.clear_caches()
    arguments = ARGUMENTS()
    options = {"donate_argnums": 0} if function is donating else {}
    got = ejcache.ejit(function, direct=True, **options)(*arguments)
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and (np.asarray(a) == b).all(), got, EXPECTED[function])
    assert jax.tree.structure(got) == jax.tree.structure(EXPECTED[function]) and all(jax.tree.leaves(same)), got

def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield from places(each, (*path, name))

def put(record, path, value):
    for name in path[:-1]:
        record = record[name]
    record[path[-1]] = value

def named(fastpath):
    text = json.dumps(fastpath)
    yield {**fastpath, "options": ""}
    yield {**fastpath, "options": "//8="}
    for kind in ("pinned_host", "unpinned_host", "foreign"):
        yield json.loads(text.replace('"device"', f'"{kind}"'))
    types = ("float32", "int32"), ("float32", "bfloat16"), ("int32", "float32")
    for one, other in (*types, ("[4]", "[5]"), ("[4]", "[2, 2]")):
        yield json.loads(text.replace(one, other))
    for name in ("outputs", "inputs", "devices", "kept"):
        for changed in (fastpath[name][:-1], fastpath[name] * 2, fastpath[name][::-1]):
            yield {**fastpath, name: changed}

@functools.cache
def check():
    global damage
    records, found = {}, []
    def keep(record):
        records[current] = copy.deepcopy(record)
    for current in SIZE:
        damage = keep
        start(current)
    if len(sys.argv) == 1:
        return "recorded"
    tried = []
    for function in SIZE:
        own = records[function]["fastpath"]
        changes = [(("fastpath",), each) for each in named(own)]
        for other in SIZE:
            changes += [((name,), records[other][name]) for name in ("entry", "fastpath")]
            changes += [(("fastpath", name), value) for name, value in records[other]["fastpath"].items()]
        for number, path in enumerate(places(own) if function is donating else ()):
            changes += [(("fastpath", *path), VALUES[(number + more) % len(VALUES)]) for more in (0, 4)]
        tried += [(function, *each) for each in changes]
    for function, path, value in tried:
        damage = lambda record: put(record, path, copy.deepcopy(value))
        before = len(last_verdicts())
        try:
            start(function)
            said = [each.verdict for each in last_verdicts()[before:]]
        except Exception as exc:
            found.append(f"{function.__name__} {path} {value}: {type(exc).__name__}: {exc}")
    return found, len(tried)
"""


def test_damaged_and_exchanged_records_are_a_miss(tmp_path):
    """No process ends, no call raises or gives another result, and no donated argument is lost."""
    files = {PROGRAM: PRELUDE + TEXT}
    program = {"files": files, "recorded": files, "origin": "index", "value": 2, "way": "path"}
    request = {"program": program, "env": {}, "home": str(tmp_path), "plain": False}
    servers = [Server(history, (), "", tmp_path) for history in ("plain", "other")]
    try:
        starts = [
            servers[number % 2].start({**request, "call": "check()", "arguments": ["x"] * (number == 2)})
            for number in range(3)
        ]
    finally:
        for server in servers:
            server.close()
    assert [each.get("failed") for each in starts] == [None] * 3
    assert [verdict for _, verdict, _ in starts[2]["verdicts"]][:3] == ["hit"] * 3
    _, *problems, tried = starts[2]["results"][0]
    assert problems == []
    assert int(tried.removeprefix("int ")) > 150
