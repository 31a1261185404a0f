"""Running a program in this process as `python` would: its arguments, path, `__main__`, exit status and tracebacks."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ejcache.errors import UsageError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, TracebackType

__all__ = ["Program"]


@dataclass(frozen=True, slots=True)
class Program:
    """A script, or a module as `python -m` takes it, and its arguments.

    Attributes:
        target: path of a script, of a directory or archive with a `__main__.py`; with `as_module` a module's name.
        arguments: what it finds in `sys.argv[1:]`.
        as_module: whether `target` is a module's name.
    """

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False

    def check(self) -> None:
        """Find out whether there is such a script; modules are found when they are run, by importing their package.

        Raises:
            UsageError: there is none.
        """
        if not self.as_module and not Path(self.target).exists():
            raise UsageError(f"run: there is no program {self.target}")

    def run(self) -> None:
        """Run it as `__main__`, which it stays, as threads and exit handlers expect.

        Whatever it raises passes through; if nobody catches it, its traceback begins in the program.

        Raises:
            SystemExit: there is no such program, among the program's own reasons.
        """
        spec: ModuleSpec | None
        try:
            if self.as_module:
                _set_first_path(str(Path.cwd()))
                sys.argv[:] = ["-m", *self.arguments]
                spec = _module_spec(self.target)
                name = str(spec.origin)
            else:
                name = self.target
                spec = _set_script_path(name)
            sys.argv[:] = [name, *self.arguments]
            main, code = _make_main(spec, name)
            sys.modules["__main__"] = main
            exec(code, main.__dict__)  # noqa: S102 (the program that was asked for)
        except (Exception, KeyboardInterrupt):
            # Raised again rather than shown here, because Python gives an uncaught interrupt its own exit status.
            _hide_our_frames()
            raise


def _make_main(spec: ModuleSpec | None, path: str) -> tuple[ModuleType, CodeType]:
    main = ModuleType("__main__")
    names: dict[str, Any] = main.__dict__
    names["__builtins__"] = sys.modules["builtins"]
    if spec is None:
        path = str(Path(path).absolute())
        names["__loader__"] = SourceFileLoader("__main__", path)
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    else:
        path = str(spec.origin)
        loader: Any = spec.loader
        names.update(__loader__=loader, __package__=spec.parent, __spec__=spec)
        code = loader.get_code(spec.name)
        if code is None:
            sys.exit(f"ejcache: run: {spec.name} has no code that could be run")
    names.update(__file__=path, __cached__=None)
    return main, code


def _set_script_path(target: str) -> ModuleSpec | None:
    """Make the script's own directory importable; for a directory or archive, itself, and find its main module."""
    path = Path(target)
    if not path.is_dir() and path.suffix not in {".zip", ".pyz"}:
        _set_first_path(str(path.resolve().parent))
        return None
    place = str(path.absolute())
    _set_first_path(place)
    spec = PathFinder.find_spec("__main__", [place])
    if spec is None:
        sys.exit(f"ejcache: run: there is no __main__ module in {target}")
    return spec


def _module_spec(name: str) -> ModuleSpec:
    """What `python -m name` runs: a module, or the `__main__` of a package."""
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            import_module(name)
            name = f"{name}.__main__"
            spec = find_spec(name)
    except ModuleNotFoundError as exc:
        # Only if it is the module that was asked for, or a package above it; others are the program's own trouble.
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        spec = None
    except ValueError:
        spec = None
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        sys.exit(f"ejcache: run: there is no module named {name}")
    return spec


def _set_first_path(entry: str) -> None:
    """Put `entry` where the directory of the `ejcache` command stands, which the program has nothing to do with."""
    if not sys.flags.safe_path:  # else Python was told to put nothing there, and did not
        sys.path[:1] = [entry]


def _hide_our_frames() -> None:
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        step = traceback
        while step is not None:
            if step.tb_frame.f_code.co_filename == __file__:
                traceback = step.tb_next
            step = step.tb_next
        hook(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = show
