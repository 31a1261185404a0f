"""One start of a trap, in a process of its own: it runs the program, calls the function twice, and reports."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import importlib.abc
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from direct_traps.trap import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_INSTALLED = "site-packages/"


def run_child(request: dict[str, Any], answers: int) -> None:
    """Write the answer to the descriptor `answers` when everything that runs at exit has run."""
    home = Path(request["home"])
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
    sys.dont_write_bytecode = True
    sys.argv = [PROGRAM, *request["arguments"]]
    heard = io.StringIO()
    answer: dict[str, Any] = {}
    names: set[str] = set()
    traced: list[str] = []
    try:
        decorate = _decorator(request["plain"], home)
        _offer(_named(decorate, names), request["program"].get("value"))
        program = (
            _script(**request["program"])
            if request["program"]["way"] == "script"
            else _program(home / "src", **request["program"])
        )
        _note_traces(traced)
        with _heard(heard):
            answer["results"] = _run(program, request["call"])
    except BaseException as exc:  # the answer says it
        import traceback

        answer["failed"] = f"{type(exc).__name__}: {exc}"
        answer["traceback"] = traceback.format_exc()
    answer |= {"traced": len(names.intersection(traced)), "output": _of_program(heard.getvalue())}
    answer["warned"] = "direct mode is off" in heard.getvalue()
    answer["verdicts"] = [] if request["plain"] else _verdicts()
    if request["plain"]:
        answer["module"] = _module_digest(home, names)
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    answer["imported"] = list(sys.modules)
    with os.fdopen(answers, "wb") as file:
        file.write(json.dumps(answer).encode())


# ---------------------------------------------------------------- where the program lies


def _program(
    source: Path, *, way: str, files: Mapping[str, str], recorded: Mapping[str, str], origin: str, value: int
) -> Callable[..., Any]:
    """What runs the program, which is in files, installed from a directory, or (`live`) in no file at all."""
    shutil.rmtree(source, ignore_errors=True)
    site = source / "site-packages"
    site.mkdir(parents=True)
    os.chdir(source)
    installed = {name: text for name, text in files.items() if name.startswith(_INSTALLED)}
    _write(source, installed)
    if installed and origin != "nothing":
        _install(
            site, "fakelib", {name: recorded[name] for name in installed}, None if origin == "index" else {origin: {}}
        )
    own = {name: text for name, text in files.items() if name not in installed}
    sys.path[:0] = [str(source), str(site)]
    if way == "live":
        modules = {name: text for name, text in own.items() if name.endswith(".py")}
        _write(source, {name: text for name, text in own.items() if name not in modules})
        sys.meta_path.insert(0, _Memory(modules))
        return lambda main: exec(_compiled(modules[PROGRAM], "<program>"), vars(main))
    if way == "path":
        _write(source, own)
        return lambda main: exec(_compiled(own[PROGRAM], str(source / PROGRAM)), vars(main))
    place = source / "venv" / "site-packages"
    modules = {name: text for name, text in own.items() if name.endswith(".py")}
    _write(place, modules)
    _write(source, {name: text for name, text in own.items() if name not in modules})
    _install(place, "project", {_INSTALLED + name: text for name, text in modules.items()}, {"dir_info": {}})
    sys.path.insert(0, str(place))
    return lambda main: sys.modules.__setitem__("__main__", importlib.import_module("program"))


def _compiled(text: str, path: str) -> types.CodeType:
    return compile(text, path, "exec", dont_inherit=True)  # this module postpones annotations


def _script(*, way: str, place: str, name: str, installed: bool, cwd: str) -> Callable[..., Any]:
    """What runs a module of the package `runs`: by its path, or as `python -m` runs it."""
    os.chdir(cwd)
    sys.path.insert(0, place)
    path = Path(place) / "runs" / f"{name}.py"

    def run(main: Any) -> None:
        main.__file__ = str(path)
        if installed:
            main.__spec__, main.__package__ = importlib.util.find_spec(f"runs.{name}"), "runs"
        with contextlib.suppress(SystemExit):
            exec(_compiled(path.read_text(encoding="utf-8"), str(path)), vars(main))

    return run


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _install(site: Path, name: str, files: Mapping[str, str], origin: dict[str, Any] | None) -> None:
    """What pip writes beside the files of a distribution, an hour ago for those that are as it wrote them."""
    about = site / f"{name}-1.0.dist-info"
    texts = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "INSTALLER": "pip\n"}
    if origin is not None:
        texts["direct_url.json"] = json.dumps({"url": f"file:///somewhere/{name}", **origin})
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path.removeprefix(_INSTALLED)},sha256={digest},{len(text.encode())}\n")
    _write(about, {**texts, "RECORD": "".join(lines)})
    before = time.time() - 3600
    for path in [*about.iterdir(), *(site / each.removeprefix(_INSTALLED) for each in files)]:
        if path.parent == about or path.read_text(encoding="utf-8") == files[path.relative_to(site.parent).as_posix()]:
            os.utime(path, (before, before))


class _Memory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are in no file, as in a notebook."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        found = self._path(name)
        package = found is not None and found.endswith("__init__.py")
        return None if found is None else importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module: types.ModuleType) -> None:
        path = self._path(module.__name__)
        assert path is not None
        exec(_compiled(self._modules[path], f"<{path}>"), vars(module))

    def _path(self, name: str) -> str | None:
        base = name.replace(".", "/")
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self._modules), None)


# ---------------------------------------------------------------- what is under test


def _decorator(plain: bool, home: Path) -> Callable[..., Any]:
    import jax

    if plain:
        shutil.rmtree(home / "dump", ignore_errors=True)
        jax.config.update("jax_dump_ir_to", str(home / "dump"))
        return jax.jit
    import ejcache

    ejcache.enable(str(home / "cache"), min_compile_seconds=0)
    return functools.partial(ejcache.ejit, direct=True)


def _verdicts() -> list[list[str]]:
    """What direct mode made of each call that it saw: function, verdict, sentence."""
    try:
        from ejcache.direct.verdicts import last_verdicts
    except ImportError:
        from ejcache.direct.verdicts import last_verdicts
    return [[str(word) for word in each[:3]] for each in last_verdicts()]


def _named(decorate: Callable[..., Any], names: set[str]) -> Callable[..., Any]:
    @functools.wraps(decorate)
    def ejit(fun: Any = None, **options: Any) -> Any:
        if fun is None:
            return functools.partial(ejit, **options)
        inner = fun
        while isinstance(inner, functools.partial):
            inner = inner.func
        names.add(getattr(inner, "__name__", type(inner).__name__))
        return decorate(fun, **options)

    return ejit


def _note_traces(traced: list[str]) -> None:
    """The names of the functions that JAX traces from now on: a second witness of what direct mode says."""
    import jax

    def noted(event: str, seconds: float, *, fun_name: str = "", **more: Any) -> None:
        if event == "/jax/core/compile/jaxpr_trace_duration":
            traced.append(fun_name.split(" ", maxsplit=1)[0].removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(noted)


def _offer(ejit: Callable[..., Any], value: int | None) -> None:
    """What a program imports."""
    under_test = types.ModuleType("under_test")
    vars(under_test).update(ejit=ejit, V=value)
    sys.modules["under_test"] = under_test


def _run(program: Callable[..., Any], call: str) -> list[Any]:
    """The results of two calls; the second one is dispatched by what the first one left."""
    main = types.ModuleType("__main__")
    main.__file__ = str(Path.cwd() / PROGRAM)
    sys.modules["__main__"] = main
    program(main)
    code = compile(call, "<call>", "eval")
    results = []
    for _ in range(2):
        try:
            results.append(_described(eval(code, vars(sys.modules["__main__"]))))
        except Exception as exc:
            results.append([f"{type(exc).__name__}: {str(exc).splitlines()[:1]}"])
    return results


@contextlib.contextmanager
def _heard(heard: io.StringIO) -> Any:
    """What the program prints, logs and warns of goes to `heard`."""
    handler = logging.StreamHandler(heard)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings(), contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        warnings.simplefilter("always")
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


def _of_program(output: str) -> str:
    """Without what JAX and ejcache log."""
    return "\n".join(line for line in output.splitlines() if not line.startswith(("jax", "ejcache")))


def _described(result: Any) -> list[str]:
    """The tree, and for each leaf its type, its sharding and its bytes."""
    import jax

    leaves, tree = jax.tree_util.tree_flatten(result)
    return [re.sub(r"0x[0-9a-f]+", "0x", str(tree)), *(_leaf(leaf) for leaf in leaves)]


def _leaf(leaf: Any) -> str:
    import jax
    import numpy as np

    if not isinstance(leaf, jax.Array):
        return f"{type(leaf).__name__} {leaf!r}"
    kind = f"{leaf.aval.str_short()} weak={leaf.aval.weak_type} {leaf.sharding} committed={leaf.committed}"
    plain = jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    values = np.asarray(plain)
    return f"{kind} {hashlib.sha256(values.tobytes()).hexdigest()[:16]} {values.ravel()[:4]}"


def _module_digest(home: Path, names: set[str]) -> list[str]:
    """A digest of each program that JAX compiled for a decorated function, without what names its sources."""
    paths = sorted((home / "dump").glob("*_compile.mlir"))
    words = tuple(f"jit_{name.replace('<', '_').replace('>', '_')}_" for name in names)
    # A function that another one calls is compiled under the other one's name.
    texts = [path.read_text() for path in [each for each in paths if any(w in each.name for w in words)] or paths]
    return sorted(hashlib.sha256(_without_locations(text).encode()).hexdigest()[:16] for text in texts)


def _without_locations(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("#loc")]
    return re.sub(r" loc\(#loc\d*\)", "", "\n".join(lines))
