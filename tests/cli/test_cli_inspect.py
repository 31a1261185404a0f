"""`ejcache stats`, `ls`, `config`: what they say, and that looking changes nothing."""

from __future__ import annotations

import json

import pytest
from cli_helpers import damage, ejcache, files, fill, key_text, put
from soak_turns import some

from ejcache import entry
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.store import LocalStore


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries, and counters."""
    fill(tmp_path / "cache", "jit_train", "jit_eval", "jit_init")
    return tmp_path / "cache"


def recency(cache):
    with LocalStore(cache, read_only=True) as store:
        return {entry.key: entry.last_used for entry in store.entries()}


def test_stats_for_a_person(cache):
    """Counters are shown with their share of the whole."""
    said = ejcache("stats", "--dir", cache)
    assert (said.status, said.err) == (0, "")
    shown = [line.split() for line in said.lines]
    assert ["Entries", "3"] in shown
    assert ["hits", "3", "/", "4", "(75.0%)"] in shown
    assert ["absent", "1", "/", "1", "(100.0%)"] in shown
    assert ["quick", "2", "/", "2", "(100.0%)"] in shown
    assert ["Saved", "7.5", "of", "7.5", "s", "of", "compiling"] in shown


def test_stats_for_a_machine(cache):
    """The JSON has the counters, the entries and the limit."""
    said = ejcache("stats", "--dir", cache, "--json").json
    assert (said["hits"], said["misses"], said["hit_rate"]) == (3, 1, 0.75)
    assert (said["total_entries"], said["max_size"]) == (3, Layout(cache).limit())
    assert 0 < said["overhead_size"] < 1_000_000
    assert said["total_size"] == json.loads(ejcache("ls", "--dir", cache, "--json").out)["total_size"]
    assert (said["misses_by_reason"], said["skipped"]) == ({"absent": 1}, {"quick": 2})


def test_stats_against_the_limit(cache, monkeypatch):
    """With a limit, the size is a share of it."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "100000")
    size = next(line for line in ejcache("stats", "--dir", cache).lines if line.startswith("Size"))
    assert "/ 100 kB (" in size


def test_stats_reset(cache):
    """Counting starts anew, and the entries stay."""
    assert "set to zero" in ejcache("stats", "--dir", cache, "--reset").out
    said = ejcache("stats", "--dir", cache, "--json").json
    assert (said["requests"], said["total_entries"]) == (0, 3)


def test_ls_for_a_person(cache):
    """One aligned line for each entry, the latest used first, and a sum."""
    said = ejcache("ls", "--dir", cache, columns=120)
    assert said.status == 0
    heading, *rows, total = said.lines
    assert heading.split() == [
        "name", "platform", "size", "compile", "s", "last", "used", "key",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == ["jit_init", "jit_eval", "jit_train"]
    assert rows[0].split()[1] == "cpu"
    assert "2.50" in rows[0].split()
    assert len({row.index(" cpu ") for row in rows}) == 1
    assert total.startswith("3 entries, ")


def test_ls_in_a_pipe(cache):
    """A tab is between the cells, nothing is added to them or cut, and the heading names each column."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_" + "x" * 60, variant="pgle"))
    heading, *rows, _ = ejcache("ls", "--dir", cache, "--sort", "name").lines
    assert heading.split("\t") == [
        "name", "platform", "variant", "size", "compile s", "last used", "key",
    ]  # fmt: skip
    assert [row.split("\t")[:3] for row in rows] == [
        *(["jit_" + name, "cpu", "plain"] for name in ("eval", "init", "train")),
        ["jit_" + "x" * 60, "cpu", "pgle"],
    ]
    assert {row.count("\t") for row in rows} == {6}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--sort", "name"], ["jit_eval", "jit_init", "jit_train"]),
        (["--sort", "age"], ["jit_train", "jit_eval", "jit_init"]),
        (["--sort", "used"], ["jit_init", "jit_eval", "jit_train"]),
        (["--name", "jit_*t"], ["jit_init"]),
        (["--sort", "name", "--limit", "1"], ["jit_eval"]),
        (["--limit", "0"], []),
    ],
)
def test_ls_chooses(cache, options, names):
    """--sort, --name and --limit choose the entries that are listed."""
    said = ejcache("ls", "--dir", cache, "--json", *options).json
    assert [entry["name"] for entry in said["entries"]] == names


def test_looking_is_no_use(cache):
    """Looking and verifying leave the time of the last use as it is."""
    before = ejcache("ls", "--dir", cache, "--json").json["entries"]
    for command in (["ls", "jit_eval"], ["verify"], ["why", "jit_eval"]):
        ejcache(*command, "--dir", cache)
    assert ejcache("ls", "--dir", cache, "--json").json["entries"] == before


def test_ls_by_size(cache):
    """The largest is first."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_large"), bytes(range(256)) * 50)
    said = ejcache("ls", "--dir", cache, "--json", "--sort", "size").json
    sizes = [entry["size"] for entry in said["entries"]]
    assert said["entries"][0]["name"] == "jit_large"
    assert sizes == sorted(sizes, reverse=True)


def too_long(lines, columns):
    """Lines that do not fit, but for those that end in a key or a path, which is not broken."""
    return [line for line in lines if len(line) > columns and len(line.split()[-1]) < 40]


@pytest.mark.usefixtures("doctor_is_told")
@pytest.mark.parametrize("columns", some([60, 80, 200], every=3))
def test_a_narrow_terminal(cache, columns):
    """Nothing of a table is cut, a key is on one line, and sentences are wrapped between words."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_" + "Q" * 60))
        put(store, key_text("jit_eval", variant="pgle"))
    commands = (
        ["ls"], ["stats"], ["ls", "jit_train"], ["verify"], ["prune", "-n", "--max-size", "0"], ["config"],
        ["doctor"], ["why", "jit_train"],
    )  # fmt: skip
    for command in commands:
        said = ejcache(*command, "--dir", cache, columns=columns)
        assert too_long(said.lines, columns) == [], command
    lines = ejcache("ls", "--dir", cache, columns=columns).lines
    assert "key" in " ".join(lines).split()
    listed = ejcache("ls", "--dir", cache, "--json").json["entries"]
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    assert all(any(line.rstrip().endswith(entry["logical_key"][:12]) for line in lines) for entry in listed)
    assert "".join(lines).count("Q") == 60


def test_no_text_of_a_table_is_lost():
    """The meaning of each setting is there on a terminal of 120 columns, on as many lines as it takes."""
    said = ejcache("config", columns=120)
    assert said.lines[0].split() == ["setting", "value", "source", "meaning"]
    words = " ".join(" ".join(line[said.lines[0].index("meaning") :] for line in said.lines).split())
    assert "the least recently used entries are deleted" in words
    assert too_long(said.lines, 120) == []


def test_ls_fields_are_stable(cache):
    """The fields of a listed entry are those that were promised."""
    said = ejcache("ls", "--dir", cache, "--json").json
    assert set(said) == {
        "url", "total_entries", "total_size", "side_objects", "side_size", "entries",
    }  # fmt: skip
    assert set(said["entries"][0]) == {
        "key", "name", "platform", "variant", "logical_key", "environment_digest", "size", "created",
        "last_used", "compile_seconds", "profile",
    }  # fmt: skip


def test_ls_of_an_empty_cache(tmp_path):
    """A cache without entries is fine."""
    LocalStore(tmp_path / "cache").close()
    said = ejcache("ls", "--dir", tmp_path / "cache")
    assert (said.status, said.lines) == (0, [f"0 entries, 0 B in {tmp_path / 'cache'}"])


@pytest.mark.parametrize("how", ["key", "name", "listed", "logical"])
def test_show_finds_an_entry(cache, how):
    """By its key, its name, what `ls` shows of it, or a beginning of its program's digest."""
    listed = ejcache("ls", "--dir", cache, "--json", "--name", "jit_eval").json["entries"][0]
    wanted = {
        "key": listed["key"],
        "name": "jit_eval",
        "listed": next(row for row in ejcache("ls", "--dir", cache).lines if "jit_eval" in row).split()[-1],
        "logical": listed["logical_key"][:6],
    }[how]
    said = ejcache("ls", wanted, "--dir", cache, "--json")
    assert said.status == 0
    assert said.json["key"] == listed["key"]
    assert (said.json["components"], said.json["problem"], said.json["jaxlib"]) == (
        {"computation": "c0ffee"},
        "",
        "0.12.0",
    )


def test_show_for_a_person(cache):
    """The header, the components and the verdict are lines of a name and a value."""
    shown = [line.split(maxsplit=1) for line in ejcache("ls", "jit_eval", "--dir", cache).lines if line]
    assert ["Intact", "yes"] in shown
    assert ["computation", "c0ffee"] in shown
    assert ["Key", key_text("jit_eval")] in shown


def test_show_ends_with_the_digests(cache):
    """The name is the first line; the key and the components of the key are the last ones."""
    labels = [line.split()[0] for line in ejcache("ls", "jit_eval", "--dir", cache).lines if line]
    assert labels[0] == "Name"
    digests = labels.index("Key")
    assert {"Size", "Created", "Intact"} <= set(labels[:digests])
    assert {"Program", "Components", "computation"} <= set(labels[digests:])


def test_show_of_what_is_not_there(cache):
    """An unknown name is found out, and nothing is printed on stdout."""
    said = ejcache("ls", "jit_nothing", "--dir", cache)
    assert (said.status, said.out) == (1, "")
    assert "'jit_nothing'" in said.err


def test_show_of_several(cache):
    """If several programs have the name, each is listed, with its arguments as far as its entry has them."""
    one, other = key_text("jit_eval"), key_text("jit_eval", program="other")
    signature = "(tensor<4x2xf32>) -> tensor<4xi32>"
    with LocalStore(cache) as store:
        put(store, other, signature=signature)
    said = ejcache("ls", "jit_eval", "--dir", cache)
    assert (said.status, said.err) == (0, "")
    listed = {line.split("\t")[-1] for line in said.lines if "\t" in line}
    assert listed == {"arguments and results", "(f32[4,2]) -> i32[4]", "-"}
    assert "2 entries of jit_eval" in said.out
    rows = ejcache("ls", "jit_eval", "--dir", cache, "--json").json["entries"]
    assert {row["key"]: row["signature"] for row in rows} == {one: "", other: "(f32[4,2]) -> i32[4]"}


def test_show_of_a_damaged_entry(cache):
    """Damage is the verdict, with exit status 1."""
    damage(cache, "jit_eval")
    said = ejcache("ls", "jit_eval", "--dir", cache)
    assert said.status == 1
    assert any(line.startswith("Intact") and "checksum" in line for line in said.lines)


@pytest.mark.parametrize("command", [["stats"], ["ls"], ["ls", "jit_eval"], ["verify"], ["prune", "-n", "--name", "*"]])
def test_looking_leaves_no_trace(cache, command):
    """Commands that look change neither the last use of an entry nor any file."""
    before, used = files(cache), recency(cache)
    assert ejcache(*command, "--dir", cache).status == 0
    assert recency(cache) == used
    assert files(cache) == before


def test_config_tells_where_values_come_from(monkeypatch, tmp_path):
    """A value's source is the option, the variable, or the default."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "10000000000")
    said = ejcache("config", "--dir", tmp_path, "--json")
    assert said.status == 0
    found = {s["name"]: (s["value"], s["origin"], s["source"]) for s in said.json["settings"]}
    assert found["dir"] == (str(tmp_path), "command line", "--dir")
    assert found["max_size"] == (10_000_000_000, "environment", "JAX_COMPILATION_CACHE_MAX_SIZE")
    assert found["enabled"] == (True, "default", "default")
    row = next(line for line in ejcache("config").lines if line.startswith("max_size"))
    assert row.split()[:4] == ["max_size", "10", "GB", "JAX_COMPILATION_CACHE_MAX_SIZE"]


def test_stats_say_what_a_floor_left_out(tmp_path):
    """The programs below a floor, and those that only one host has, are counted with the seconds that they took."""
    with LocalStore(tmp_path) as store:
        store.put("k", b"value")
        store.add_counters({"left_out": 3, "left_out_seconds": 0.5, "kept_here": 2, "kept_here_seconds": 90.0})
    lines = [" ".join(line.split()) for line in ejcache("stats", "--dir", tmp_path).lines]
    assert "Below a floor 3 (0.5 s of compiling)" in lines
    assert "For one host 2 (90.0 s of compiling)" in lines
    fields = ejcache("stats", "--dir", tmp_path, "--json").json
    assert (fields["left_out"], fields["left_out_seconds"]) == (3, 0.5)


def test_config_shows_the_floors(monkeypatch):
    """Where nobody has set a floor, there are two; one that is set holds for this host and for the others."""
    assert ejcache("config", "--json").json["floors"] == {"keep_seconds": 0.01, "publish_seconds": 0.1}
    row = next(line for line in ejcache("config").lines if line.startswith("min_compile_seconds"))
    assert row.split()[1:7] == ["0.01", "here,", "0.1", "to", "publish", "default"]
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1.0")
    assert ejcache("config", "--json").json["floors"] == {"keep_seconds": 1.0, "publish_seconds": 1.0}
    row = next(line for line in ejcache("config").lines if line.startswith("min_compile_seconds"))
    assert row.split()[1:3] == ["1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]


def test_config_finds_values_that_cannot_be_used(monkeypatch):
    """A variable with an invalid value is named with the accepted values, and the exit status is 1."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "much")
    said = ejcache("config", "--json")
    assert said.status == 1
    assert "JAX_COMPILATION_CACHE_MAX_SIZE cannot be 'much': accepted is" in said.err
    assert len(said.json["problems"]) == 1


@pytest.mark.parametrize(
    ("variable", "text"),
    [("JAX_COMPILATION_CACHE_MAX_SIZE", "10GB"), ("JAX_ENABLE_COMPILATION_CACHE", "easy"), ("JAX_ENABLE_PGLE", "")],
)
def test_config_finds_values_at_which_jax_stops(monkeypatch, variable, text):
    """A value with which JAX cannot be imported is not reported as ignored."""
    monkeypatch.setenv(variable, text)
    said = ejcache("config")
    assert said.status == 1
    (line,) = said.err.splitlines()
    assert line.startswith(f"ejcache: {variable} cannot be {text!r}: accepted is ")
    assert line.endswith("; JAX itself refuses to be imported with it")


def test_config_says_why_nothing_is_cached(monkeypatch):
    """If the cache is switched off, the message names the variable that does it."""
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    assert "nothing is cached: JAX_ENABLE_COMPILATION_CACHE is false" in ejcache("config").out


def test_a_value_of_several_lines_is_shown_in_several_lines(tmp_path):
    """The compile options in an entry's metadata are lines, and no character stands for their ends."""
    key = key_text()
    header = entry.Header(key=key, extra={"details": {"options": "level=O2\nshardy=True", "other": "x"}})
    with LocalStore(tmp_path / "cache") as store:
        store.put(key, entry.encode(header, b"executable"))
    shown = ejcache("ls", key, "--dir", tmp_path / "cache").out
    at = [line.find(text) for text in ("level=O2", "shardy=True") for line in shown.splitlines() if text in line]
    assert len(at) == 2
    assert at[0] == at[1]
    assert "\N{REPLACEMENT CHARACTER}" not in shown


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("command", ["stats", "ls"])
def test_a_cache_in_which_nothing_is_stored_yet(tmp_path, monkeypatch, command, there):
    """Before the first program has run, the place of the settings is an empty cache, and no failure."""
    place = tmp_path / "cache"
    if there:
        place.mkdir()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(place))
    said = ejcache(command, "--json")
    assert (said.status, said.err) == (0, "")
    assert said.json["url"] == str(place)
    assert said.json["total_entries"] == 0
    shown = ejcache(command)
    assert (shown.status, "0" in shown.out, str(place) in shown.out) == (0, True, True)
    assert place.exists() is there


@pytest.mark.parametrize("raw", [b"small", bytes(100_000)])
def test_ls_reads_entries_in_rows_and_in_files(tmp_path, raw):
    """Compile times come from headers, wherever the store keeps them, and reading leaves no use behind."""
    with LocalStore(tmp_path / "cache") as store:
        for number in range(300):
            put(store, key_text(f"jit_{number}"), raw, seconds=float(number))
    before = recency(tmp_path / "cache")
    listed = ejcache("ls", "--dir", tmp_path / "cache", "--json").json["entries"]
    assert {row["name"]: row["compile_seconds"] for row in listed} == {f"jit_{n}": float(n) for n in range(300)}
    assert recency(tmp_path / "cache") == before
