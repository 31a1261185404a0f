"""Where a setting's value comes from, and what a bad one says."""

from __future__ import annotations

import ast
import json
import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest
from store_processes import in_fork

from ejcache.errors import SettingError, UnknownSettingError
from ejcache.settings import directories as settings_directories
from ejcache.settings import resolve as settings
from ejcache.settings import table as settings_table
from ejcache.settings.described import SETTINGS, setting_named
from ejcache.settings.directories import home_directory
from ejcache.settings.resolve import parse, resolve
from ejcache.settings.table import Origin, Value
from ejcache.util.log import forget_warnings


class Flags:
    """JAX's flags as a program left them."""

    def __init__(self, **values: Value) -> None:
        self.values = values

    def read(self, flag: str) -> Value | None:
        return self.values.get(flag)


@pytest.fixture(autouse=True)
def _no_command_line():
    yield
    settings.set_command_line({})


def test_the_directory_comes_from_the_highest_layer_that_has_one():
    """Call over command line over JAX_COMPILATION_CACHE_DIR over COMPILE_FUNC_DIR over the user's cache folder."""
    env = {"HOME": "/home/u"}
    assert resolve(environ=env)["dir"].value == "/home/u/.cache/ejcache"
    env["XDG_CACHE_HOME"] = "/xdg"
    assert resolve(environ=env)["dir"].value == "/xdg/ejcache"
    env["COMPILE_FUNC_DIR"] = "gs://b/easydel"
    assert resolve(environ=env)["dir"].source == "COMPILE_FUNC_DIR"
    env["JAX_COMPILATION_CACHE_DIR"] = "/jax"
    assert resolve(environ=env)["dir"].source == "JAX_COMPILATION_CACHE_DIR"
    settings.set_command_line({"dir": "/flag"})
    read = Flags(jax_compilation_cache_dir=Value("/jax", Origin.ENVIRONMENT))  # JAX holds it; no call set it
    assert resolve(environ=env, flags=read)["dir"].origin is Origin.COMMAND_LINE
    called = Flags(jax_compilation_cache_dir=Value("/call", Origin.CALL))
    assert resolve(environ=env, flags=called)["dir"].value == "/call"


def test_nothing_is_preloaded_by_default_where_a_process_has_one_core(monkeypatch):
    """A thread would take from the program what it saves. Who asks for it gets it."""
    monkeypatch.setattr("ejcache.settings.resolve.has_second_core", lambda: False)
    by_default, asked = resolve(environ={})["preload"], resolve(environ={"EJCACHE_PRELOAD": "1"})
    assert (by_default.value, by_default.origin, by_default.source) == (False, Origin.DEFAULT, "default, on one core")
    assert asked.preload is True
    assert resolve(environ={}, calls={"preload": True}).preload is True
    monkeypatch.setattr("ejcache.settings.resolve.has_second_core", lambda: True)
    assert resolve(environ={}).preload is True


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, "JAX_ENABLE_COMPILATION_CACHE is false"),
        ({"JAX_COMPILATION_CACHE_MAX_SIZE": "0"}, "JAX_COMPILATION_CACHE_MAX_SIZE is 0"),
    ],
)
def test_disabling_always_wins(env, reason):
    """Whatever else is set, the two switches switch it off."""
    resolved = resolve(environ={"JAX_COMPILATION_CACHE_DIR": "/jax", **env})

    assert resolved.disabled_reason == reason


def test_a_directory_called_none_switches_the_cache_off():
    """`jax.config.update("jax_compilation_cache_dir", None)` means what it means in JAX."""
    flags = Flags(jax_compilation_cache_dir=Value(None, Origin.CALL))

    assert "set no directory" in resolve(environ={"COMPILE_FUNC_DIR": "/x"}, flags=flags).disabled_reason


@pytest.mark.parametrize("text", ["true", "YES", "ok", "1", "Easy"])
def test_easydel_truth(text):
    """EasyDeL's spellings of true, in any case."""
    assert resolve(environ={"EASYDEL_RECOMPILE_FORCE": text}).recompile_force is True


@pytest.mark.parametrize(
    ("ours", "theirs", "setting", "one", "other"),
    [
        ("DIR", "EJKERNEL_PERSISTENT_CACHE_DIR", "autotune_dir", "/a", "/b"),
        ("POLICY", "EJKERNEL_AUTOTUNE_POLICY", "autotune_policy", "error", "heuristics"),
        ("RECORD", "EJKERNEL_OPS_RECORD", "autotune_record", "/calls", True),
    ],
)
def test_both_names_of_the_autotune_settings(ours, theirs, setting, one, other):
    """Each has a name beside ejkernel's, which counts if both are set."""
    ours = f"EJCACHE_AUTOTUNE_{ours}"
    assert resolve(environ={theirs: str(other)})[setting][::2] == (other, theirs)
    assert resolve(environ={ours: str(one)})[setting][::2] == (one, ours)
    assert resolve(environ={theirs: str(other), ours: str(one)})[setting][::2] == (one, ours)


def test_allow_full_cache_stands_for_three_flags_unless_the_program_set_them():
    """No floors and all of XLA's caches; a program that sets a floor itself means it."""
    env = {"ALLOW_FULL_CACHE": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "5"}
    full = resolve(environ=env)
    assert (full.min_entry_size, full.min_compile_seconds, full.xla_caches) == (-1, 0.0, "all")

    called = Flags(jax_persistent_cache_min_compile_time_secs=Value(3.0, Origin.CALL))
    assert resolve(environ=env, flags=called).min_compile_seconds == 3.0


def test_a_bad_value_in_the_environment_is_reported_and_passed_over():
    """A typing error in a job's environment must not fail the job."""
    resolved = resolve(environ={"EJCACHE_READ_ONLY": "perhaps"})

    assert resolved.read_only is False
    assert [str(p) for p in resolved.problems] == [
        "EJCACHE_READ_ONLY cannot be 'perhaps': accepted is true or false (also 1/0, yes/no, on/off)"
    ]


def test_a_bad_value_of_a_jax_flag_on_the_command_line_is_reported_and_passed_over():
    """absl takes any text for some flags; the program that it belongs to goes on."""
    flags = Flags(jax_persistent_cache_enable_xla_caches=Value("some", Origin.COMMAND_LINE))

    resolved = resolve(environ={"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}, flags=flags)

    assert resolved.xla_caches == "none"
    assert ["'some'" in str(problem) for problem in resolved.problems] == [True]


TEXTS = (
    *("", " ", "0", "1", "-1", "+5", " 7 ", "1_000", "-2", "1e3", "0x10", "1.5", "nan", "inf", "9" * 5_000),
    *("10GB", "10GiB", "true", "TRUE", "Yes", "t", "y", "on", "ok", "easy", "false", "No", "f", "n", "off", "none"),
)


def test_jax_variables_are_read_as_jax_reads_them(run_forked):
    """A text with which `import jax` fails is a problem that says so; any other is none of that kind."""
    variables = {setting.flag.upper(): setting for setting in SETTINGS if setting.flag}
    asked = json.dumps([list(variables), TEXTS])
    program = """
    import json, os, sys
    from jax._src import config
    names, texts = json.loads(sys.argv[1])
    sources = {"bool": config.bool_state, "int": config.int_state, "float": config.float_state}
    values = {name: config.config_states[name.lower()].value for name in names}
    refused = []
    for name in names:
        for number, text in enumerate(texts):
            os.environ["JAX_EJCACHE_PROBE_%d" % number] = text
            try:
                kind = type(values[name]).__name__
                if kind in sources:
                    sources[kind](name="jax_ejcache_probe_%d" % number, default=values[name], help="")
            except ValueError:
                refused.append([name, text])
            config.config._value_holders.pop("jax_ejcache_probe_%d" % number, None)
    print(json.dumps(refused))
    """
    refused = {tuple(pair) for pair in json.loads(run_forked(program, asked).stdout)}
    assert len(refused) > 100
    for name in variables:
        for text in TEXTS:
            problems = [str(problem) for problem in resolve(environ={name: text}).problems]
            says = any(problem.endswith("; JAX itself refuses to be imported with it") for problem in problems)
            assert says == ((name, text) in refused), (name, text, problems)


def test_units_are_for_options_and_calls_only():
    """JAX takes bytes alone, and its message must not send anybody to `10GB`."""
    (problem,) = resolve(environ={"JAX_COMPILATION_CACHE_MAX_SIZE": "10GB"}).problems
    assert str(problem) == (
        "JAX_COMPILATION_CACHE_MAX_SIZE cannot be '10GB': accepted is a number of bytes without a unit "
        "(write 10000000000), 0 for no caching, or -1 for no limit; JAX itself refuses to be imported with it"
    )
    assert resolve(environ={"EJCACHE_LOCAL_MAX_SIZE": "10GB"}).local_max_size == 10**10
    settings.set_command_line({"max_size": "10GB"})
    assert resolve(environ={}).max_size == 10**10


def test_empty_xla_caches_are_none_as_in_jax():
    """JAX takes the empty text for an empty list."""
    value = resolve(environ={"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": ""})["xla_caches"]
    assert (value.value, value.origin) == ("none", Origin.ENVIRONMENT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_compile_seconds", -5),
        ("report", "lne"),
        ("max_size", -2),
        ("min_entry_size", "1.5"),
        ("dir", 7),
        ("xla_caches", "some"),
        ("enabled", "maybe"),
        ("compare_calls", 0),
        ("pgle_aggregation_percentile", 101),
        ("source_file_regex", "("),
    ],
)
def test_a_bad_value_in_a_call_names_setting_value_and_what_is_accepted(name, value):
    """One sentence, for every kind of setting."""
    setting = setting_named(name)
    with pytest.raises(SettingError) as caught:
        parse(name, value, source="ejcache.enable(x=…)")

    assert "ejcache.enable(x=…)" in str(caught.value)
    assert repr(value) in str(caught.value)
    assert setting.accepted in str(caught.value)


def test_values_with_several_spellings():
    """JAX's users write -1 for no floor; a path cannot be a misspelt word."""
    assert parse("min_compile_seconds", -1) == 0.0
    for where in ("LINE", "1", "off", "./out", "report.json", "~/report"):
        assert parse("report", where) == where


def test_every_setting_has_a_variable_of_its_name():
    """`EJCACHE_` and the name count, before other names; JAX itself goes by three settings and reads its own only."""
    of_jax = {"enable_pgle", "pgle_profiling_runs", "pgle_aggregation_percentile"}
    assert setting_named("jax_compilation_cache_max_size") is setting_named("compilation_cache_max_size")
    for setting in SETTINGS:
        assert setting.doc and setting.accepted  # noqa: PT018
        own = f"EJCACHE_{setting.name.upper()}"
        assert (own in setting.variables) == (setting.name not in of_jax)
    now = resolve(environ={"EJCACHE_DIR": "/ours", "JAX_COMPILATION_CACHE_DIR": "/jax", "EJCACHE_MAX_SIZE": "10GB"})
    assert (now["dir"].source, now.dir, now.max_size, now.problems) == ("EJCACHE_DIR", "/ours", 10**10, ())


def test_an_unknown_setting_says_what_lists_those_there_are():
    """In a line that can be read."""
    with pytest.raises(SettingError, match=r"there is no setting limit \(`ejcache config` lists them\)"):
        setting_named("limit")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_sze", "max_size"), ("readonly", "read_only"), ("compilation_cache_maxsize", "compilation_cache_max_size")],
)
def test_misspelt_setting(name, meant):
    """The message names the setting, or the JAX flag, that was probably meant."""
    with pytest.raises(UnknownSettingError, match=rf"^there is no setting {name} \(did you mean (jax_)?{meant}\?\)$"):
        setting_named(name)


def test_misspelt_variable():
    """A variable that is nearly one of ours is a problem; any other may belong to somebody else."""
    env = {"EJCACHE_READONLY": "1", "EJCACHE_BUILD_NUMBER": "7", "EJCACHE_READ_ONLY": "1", "HOME": "/h"}
    (problem,) = resolve(environ=env).problems
    assert str(problem) == "there is no variable EJCACHE_READONLY (did you mean EJCACHE_READ_ONLY?)"


def test_what_enables_the_cache():
    """`EJCACHE` is 1, 0 or a place, which is then the cache unless a call or the command line names one."""
    assert [resolve(environ={"EJCACHE": text}).activate for text in ("", "1", "off", "/c")] == [None, True, False, "/c"]
    place = {"EJCACHE": "gs://b/c", "JAX_COMPILATION_CACHE_DIR": "/jax"}
    assert resolve(environ=place)["dir"][::2] == ("gs://b/c", "EJCACHE")
    called = Flags(jax_compilation_cache_dir=Value("/call", Origin.CALL))
    assert resolve(environ=place, flags=called).dir == "/call"
    wrong = resolve(environ={"EJCACHE": "none"})
    assert (wrong.activate, [problem.setting for problem in wrong.problems]) == (None, ["EJCACHE"])


def test_type_checkers_know_every_setting():
    """The keywords that `enable` has for a type checker are the settings."""
    source = ast.parse(Path(settings_table.__file__).read_text())
    (options,) = (node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == "SettingOptions")
    names = {node.target.id for node in options.body if isinstance(node, ast.AnnAssign)}
    assert names | {"dir", "max_size", "read_only"} == {setting.name for setting in SETTINGS}


@pytest.fixture
def _homeless(monkeypatch, tmp_path):
    """A container's uid without a name, no HOME, and temporary files of the test's own."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("_homeless")
def test_home_is_found_without_a_passwd_entry(tmp_path):
    """A directory of this user's under the temporary one, the same for each process, and nobody else's to write."""
    home = tmp_path / f"ejcache-{os.getuid()}"

    assert resolve(environ={}).dir == str(home / ".cache/ejcache")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.usefixtures("_homeless")
@pytest.mark.parametrize("prepared", ["open to all", "another's", "link", "file"])
def test_a_home_that_somebody_else_has_prepared_is_not_used(tmp_path, prepared, monkeypatch):
    """Executables found there are run: a directory that no other user can have prepared takes its place."""
    home = tmp_path / f"ejcache-{os.getuid()}"
    if prepared == "link":
        (tmp_path / "theirs").mkdir()
        home.symlink_to(tmp_path / "theirs")
    elif prepared == "file":
        home.touch()
    else:
        home.mkdir()
        home.chmod(0o777 if prepared == "open to all" else 0o755)
        if prepared == "another's":
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    environments = {}, {}, {"XDG_CACHE_HOME": "/xdg"}
    used, again, elsewhere = in_fork(lambda: [resolve(environ=environ).dir for environ in environments])

    assert home not in Path(used).parents
    assert Path(used).is_relative_to(tmp_path)
    assert stat.S_IMODE(Path(used).parent.parent.stat().st_mode) == 0o700
    assert again == used
    assert elsewhere == "/xdg/ejcache"


@pytest.mark.usefixtures("_homeless")
def test_no_home_and_no_room_for_temporary_files(tmp_path, monkeypatch):
    """Nothing is raised: the store says that its directory cannot be made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    assert in_fork(lambda: resolve(environ={}).dir) == "/.cache/ejcache"


@pytest.mark.parametrize("prepared", ["ejcache", "ejcache/state"])
def test_a_state_directory_of_others_is_not_used(tmp_path, monkeypatch, caplog, prepared):
    """Keys depend on what is remembered there: another directory takes its place, and one warning says why."""
    forget_warnings()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ejcache" / "state").mkdir(mode=0o700, parents=True)
    (tmp_path / prepared).chmod(0o777)
    assert tmp_path not in settings_directories.state_directory().parents
    assert settings_directories.state_directory() == settings_directories.state_directory()
    (record,) = caplog.records
    assert f"any user can write to {tmp_path / prepared} (mode 0777)" in record.getMessage()


def test_a_cache_folder_behind_a_link_is_used(tmp_path, monkeypatch):
    """`~/.cache` as a link to a scratch disk, and a umask of 002 with a group of one's own, are ordinary."""
    (tmp_path / "scratch" / "ejcache" / "state").mkdir(parents=True)
    for path in (tmp_path / "scratch" / "ejcache", tmp_path / "scratch" / "ejcache" / "state"):
        path.chmod(0o775)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert settings_directories.state_directory() == tmp_path / "link" / "ejcache" / "state"


def test_an_empty_home_is_none(monkeypatch):
    """Not the root of all directories, where root would make `/.cache`."""
    monkeypatch.setenv("HOME", "")
    assert home_directory({"HOME": ""}) == home_directory({}) == Path(pwd.getpwuid(os.getuid()).pw_dir)
