"""Compiles programs in a process of `ejcache warm`: `python -m ejcache.cli.programs.warm_worker TARGET`.

It imports the target, and answers requests to compile it; see `util.worker_processes`.

    first answer := {"platform": "cpu", "jitted": true or false}    it is ready
    request      := {"shapes": text}                    compile the target for these arguments
                  | {}                                  call the target, which calls `ejcache.warm`
    answer       := {"program", "outcome", "reason", "seconds"}, for each program
                  | {"done": true}                      the request is answered
    last answer  := {"uploaded": true or false}         after the end of the requests

Instead of the first answer there is {"refused": reason, "usage": true or false} if the target cannot be imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import EjcacheError, NotFoundError, UsageError
from ejcache.jax_integration.shape_grammar import parse_call
from ejcache.util.worker_processes import answering

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAILED: Final = "failed"
EXPORTED: Final = ".bin"
"""How files end that hold what `jax.export` has serialized."""
TARGET: Final = "target"
"""In place of the platform: the process has none of the devices that it compiles for."""
_UPLOAD_SECONDS: Final = 600.0
_LENGTH: Final = 300


def main(arguments: list[str]) -> None:
    """Serve the requests."""
    target, *named = arguments
    with answering() as answer:
        try:
            function = target_function(target)
        except Exception as exc:
            answer(refused=_sentence(exc), usage=isinstance(exc, UsageError) and not isinstance(exc, NotFoundError))
            return
        try:
            from ejcache.jax_integration.activate import active, enable  # JAX itself
            from ejcache.jax_integration.warm_start import platform  # JAX itself
        except Exception as exc:
            answer(refused=f"JAX cannot be imported, {_sentence(exc)}", usage=False)
            return

        if active() is None:
            enable()
        with contextlib.ExitStack() as block:
            devices = None
            if named:
                from ejcache.jax_integration.devices.targets import target as open_cache  # JAX itself

                try:
                    devices = block.enter_context(open_cache(named[0]))
                except EjcacheError as exc:
                    answer(refused=_sentence(exc), usage=True)
                    return
            answer(platform=TARGET if named else platform(), jitted=hasattr(function, "lower"))
            for line in sys.stdin:
                _serve(function, json.loads(line), answer, devices)
                answer(done=True)
        cache = active()
        answer(uploaded=cache is None or cache.flush(timeout=_UPLOAD_SECONDS))


def _serve(
    function: Callable[..., Any], request: dict[str, str], answer: Callable[..., None], devices: Sequence[Any] | None
) -> None:
    """Compile what the request asks for, and answer for each program."""
    from ejcache.jax_integration import warm_start  # JAX itself

    began = time.monotonic()
    name = str(getattr(function, "__name__", ""))
    try:
        with warm_start.on_each_program(lambda warmed: answer(**warmed._asdict())):
            if "shapes" in request:
                args, kwargs = warm_start.abstract_call(parse_call(request["shapes"]))
                warm_start.warm(getattr(function, "exported", function), *args, **kwargs)
            else:
                function(*([devices] if devices is not None and _takes_devices(function) else []))
    except Exception as exc:
        answer(program=name, outcome=FAILED, reason=_sentence(exc), seconds=time.monotonic() - began)


class _ExportedProgram:
    """What `jax.export` has written into a file. To call it is to warm it for the shapes that it was exported for."""

    def __init__(self, path: str) -> None:
        from ejcache.jax_integration.warm_start import read_exported  # JAX itself

        self.exported = read_exported(path)
        self.__name__ = str(self.exported.fun_name)

    def __call__(self) -> None:
        from ejcache.jax_integration.warm_start import warm  # JAX itself

        warm(self.exported)


def target_function(target: str) -> Callable[..., Any]:
    """Return the function that `MODULE:FUNCTION` or `FILE.py:FUNCTION` names, or that is exported in `FILE.bin`.

    Raises:
        UsageError: there is none.
    """
    if target.endswith(EXPORTED):
        return _ExportedProgram(target)
    where, _, names = target.rpartition(":")
    path = None
    if where.endswith(".py"):
        path = Path(where).absolute()
        if not path.is_file():
            raise NotFoundError(f"there is no file {where}")
        sys.path[:0] = [str(path.parent)]
        where = path.stem
    elif _is_absent(where):
        raise NotFoundError(
            f"there is no module {where} on Python's path: install it, put its directory into PYTHONPATH, or name its"
            f" file, as in {where}.py:{names}"
        )
    found: Any = importlib.import_module(where)
    if path is not None and path != Path(found.__file__ or ""):
        raise UsageError(f"{path.name} has the name of another module, {found.__file__}")
    for name in names.split("."):
        if not hasattr(found, name):
            raise NotFoundError(f"{where} has no {names}")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{target} is not a function")
    return found  # type: ignore[no-any-return]


def _takes_devices(function: Callable[..., Any]) -> bool:
    """True if a function has a parameter that needs a value, which is the devices of the target."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.default is each.empty and each.kind in (0, 1) for each in parameters)


def _is_absent(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


def _sentence(exc: Exception) -> str:
    """Return an error in one line."""
    text = " ".join(str(exc).split())
    if isinstance(exc, EjcacheError):
        return text
    return f"{type(exc).__name__}: {text}"[:_LENGTH] if text else type(exc).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
