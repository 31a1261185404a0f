"""One phase of one case, in a process of its own: it runs the program, calls the function twice, and reports."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import inspect
import io
import json
import logging
import os
import shutil
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_TOOL: Final = 0
"""The number of the tool that `sys.monitoring` keeps for debuggers. It sees whether the body of the function runs."""


def run_child(request: dict[str, Any], answers: int) -> None:
    """Write the answer to the descriptor `answers` when everything that runs at exit has run."""
    home = Path(request["home"])
    source = _write_files(home / "src", request["files"])
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
    os.chdir(source)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(source), str(source / "site-packages")]
    sys.argv = ["program.py", *request["arguments"]]
    runs = _Runs()
    answer: dict[str, Any] = {}
    said = io.StringIO()
    try:
        decorate = _decorator(request["mode"], home)
        with _heard(said):
            answer["results"] = _run(source, request["call"], runs.watching(decorate))
    except BaseException as exc:  # the answer says it
        import traceback

        answer["failed"] = f"{type(exc).__name__}: {exc}"
        answer["traceback"] = traceback.format_exc()
    answer |= {"traced": runs.count, "said": _of_program(said.getvalue()), "verdicts": _verdicts()}
    if request["mode"] == "plain":
        answer["module"] = _module_digest(home, runs.names)
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    answer["imported"] = list(sys.modules)
    with os.fdopen(answers, "wb") as file:
        file.write(json.dumps(answer).encode())


def _write_files(directory: Path, files: dict[str, str]) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "site-packages").mkdir(parents=True)
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


# ---------------------------------------------------------------- what is under test


def _decorator(mode: str, home: Path) -> Callable[..., Any]:
    if mode == "direct":
        return _direct(home)
    if mode == "ejkernel":
        from ejkernel.callib import _ejit

        # It joins paths to the directory, and its own setting gives it a string.
        _ejit.COMPILE_FUNC_DIR = home / "ejkernel"
        return _ejit.ejit
    import jax

    if mode == "plain":
        shutil.rmtree(home / "dump", ignore_errors=True)
        jax.config.update("jax_dump_ir_to", str(home / "dump"))
    return jax.jit


def _direct(home: Path) -> Callable[..., Any]:
    import ejcache

    wanted = {"direct_check_one_in": 0}
    from ejcache.settings.table import SETTINGS

    known = {setting.name for setting in SETTINGS}
    ejcache.enable(
        str(home / "cache"), min_compile_seconds=0, **{name: value for name, value in wanted.items() if name in known}
    )
    return functools.partial(ejcache.ejit, direct=True)


def _verdicts() -> list[list[str]]:
    """What direct mode made of each call that it saw: function, verdict, sentence."""
    try:
        from ejcache.jax_integration.direct.verdicts import last_verdicts
    except ImportError:
        return []
    return [[str(word) for word in each[:3]] for each in last_verdicts()]


# ---------------------------------------------------------------- running the program


class _Runs:
    """How often the bodies of the decorated functions ran: a second witness of what direct mode says."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.names: set[str] = set()

    def watching(self, decorate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(decorate)
        def ejit(fun: Any = None, **options: Any) -> Any:
            if fun is None:
                return functools.partial(ejit, **options)
            self.names.add(getattr(fun, "__name__", "_"))
            code = _code_of(fun)
            if code is not None and sys.version_info >= (3, 12):
                self._watch(code)
            return decorate(fun, **options)

        return ejit

    def _watch(self, code: types.CodeType) -> None:
        monitoring = sys.monitoring
        if self.count is None:
            monitoring.use_tool_id(_TOOL, "direct_traps")
            monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._started)
            self.count = 0
        monitoring.set_local_events(_TOOL, code, monitoring.events.PY_START)

    def _started(self, code: types.CodeType, offset: int) -> None:
        self.count = (self.count or 0) + 1


def _code_of(fun: Any) -> types.CodeType | None:
    while isinstance(fun, functools.partial):
        fun = fun.func
    # What decorators of libraries make shares its code with other functions.
    fun = inspect.unwrap(fun)
    fun = getattr(fun, "__func__", fun)
    found = getattr(fun, "__code__", None) or getattr(vars(type(fun)).get("__call__"), "__code__", None)
    return found if isinstance(found, types.CodeType) else None


def _run(source: Path, call: str, ejit: Callable[..., Any]) -> list[Any]:
    """The results of two calls; the second one is dispatched by what the first one left."""
    under_test = types.ModuleType("under_test")
    under_test.ejit = ejit
    sys.modules["under_test"] = under_test
    main = types.ModuleType("__main__")
    path = source / "program.py"
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(main))  # a program is run
    code = compile(call, "<call>", "eval")
    results = []
    for _ in range(2):
        try:
            results.append(_described(eval(code, vars(main))))
        except Exception as exc:
            results.append([f"{type(exc).__name__}: {str(exc).splitlines()[:1]}"])
    return results


@contextlib.contextmanager
def _heard(said: io.StringIO) -> Any:
    """What the program prints, logs and warns of goes to `said`, by code of the standard library alone.

    A function of ours that runs while the program traces would be taken for the program's.
    """
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("always")
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


def _of_program(said: str) -> str:
    """Without what JAX and ejcache log."""
    return "\n".join(line for line in said.splitlines() if not line.startswith(("jax", "ejcache")))


def _described(result: Any) -> list[str]:
    """The tree, and for each leaf its type, its sharding and its bytes."""
    import jax

    leaves, tree = jax.tree_util.tree_flatten(result)
    return [str(tree), *(_leaf(leaf) for leaf in leaves)]


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
    import re

    lines = [line for line in text.splitlines() if not line.startswith("#loc")]
    return re.sub(r" loc\(#loc\d*\)", "", "\n".join(lines))
