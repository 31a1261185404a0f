"""Tracebacks show the program, not us: no frame of ours wherever JAX hides its own, and in interrupts."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache.jax_integration.seam.calling_line import caller

PACKAGE = str(Path(ejcache.__file__).parent)
X = np.ones((2, 3), np.float32)
FILTERING = ("auto", "tracebackhide", "remove_frames", "quiet_remove_frames")


@pytest.fixture(autouse=True)
def enabled(tmp_path):
    jax.clear_caches()
    ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)


def dot_with_itself(*arguments):
    # Decorated in the test: `@ejit` while the file is collected would enable the cache for the tests of other files.
    return ejcache.ejit(dot)(*arguments)


def dot(x):
    return jnp.dot(x, x)


@ejcache.autotuned(configs=[{"block": 1}, {"block": 2}], name="scaled")
def scaled(x, *, block):
    return jnp.dot(x, jnp.ones((7, 7))) * block


def compile_error():
    jax.jit(lambda x: x + 1, compiler_options={"xla_there_is_no_such_flag": True})(X)


def compile_error_ahead_of_time():
    jax.jit(lambda x: x + 1).lower(X).compile(compiler_options={"xla_there_is_no_such_flag": True})


def callback_error():
    def refuse(x):
        raise ValueError("refused")

    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(refuse, jax.ShapeDtypeStruct(X.shape, X.dtype), x))(X))


def unknown_option():
    ejcache.ejit(static_argnumz=1)(lambda x: x)


MISTAKES = [
    compile_error,
    compile_error_ahead_of_time,
    callback_error,
    unknown_option,
    pytest.param(lambda: ejcache.ejit(lambda x: x, static_argnumz=1), id="unknown_option_at_once"),
    pytest.param(lambda: dot_with_itself(X), id="tracing_error"),
    pytest.param(lambda: dot_with_itself(object()), id="no_array"),
    pytest.param(lambda: dot_with_itself(1, 2, 3), id="too_many_arguments"),
    pytest.param(lambda: scaled(X), id="tuned"),
    pytest.param(scaled, id="tuned_without_arguments"),
    pytest.param(lambda: jax.jit(scaled)(X), id="tuned_within_jit"),
]


@contextlib.contextmanager
def filtered(how):
    jax.config.update("jax_traceback_filtering", how)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", "auto")


def frames_of(call):
    """The files in everything that Python prints of the exception of `call`, causes and contexts included."""
    with pytest.raises(BaseException) as raised:
        call()
    printed = "".join(traceback.format_exception(raised.value))
    assert __file__ in printed
    return printed.count(f'File "{PACKAGE}')


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_frame_of_ours(mistake):
    """Errors of compiling, tracing, callbacks and bad arguments show the program's lines and none of ours."""
    for filtering in FILTERING:
        with filtered(filtering):
            assert frames_of(mistake) == 0, filtering


@pytest.mark.parametrize("mistake", [compile_error, compile_error_ahead_of_time])
def test_all_frames_when_filtering_is_off(mistake):
    """`JAX_TRACEBACK_FILTERING=off` shows our frames too, for reports of mistakes that are ours."""
    with filtered("off"):
        assert frames_of(mistake) > 5


def test_an_interrupt_while_jax_makes_a_backend(run_forked):
    """Ctrl-C in the first call of a process: what enables the cache, and what loads ahead, is not in the traceback."""
    interrupted = """
        import traceback
        import jax
        from ejcache.jax_integration import activate
        from ejcache.jax_integration.seam import backends

        def interrupt(*_):
            raise KeyboardInterrupt

        {}
        try:
            jax.devices()
        except KeyboardInterrupt:
            traceback.print_exc()
    """
    for how in ("backends.watch(interrupt)", "activate.enable_from_environment = interrupt"):
        enabling = "enable" in how
        said = run_forked(interrupted.format(how), env={"EJCACHE": "1" if enabling else None}).stderr
        assert ("in initialize" if enabling else "in backends") in said
        assert said.endswith("KeyboardInterrupt\n")
        assert f'File "{PACKAGE}/' not in said
        assert not (enabling and "in interrupt" in said)


def test_an_interrupt_while_xla_compiles(run_forked, tmp_path):
    """JAX does not filter KeyboardInterrupt; all frames of ours between JAX and XLA are cut out of it all the same."""
    finished = run_forked(
        f"""
        import signal
        import ejcache, jax
        from jax._src import compiler

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        compile_it = compiler.backend_compile_and_load

        def interrupted(*arguments):
            compile_it(*arguments)
            signal.raise_signal(signal.SIGINT)

        compiler.backend_compile_and_load = interrupted
        ejcache.enable({str(tmp_path / "cache")!r}, min_compile_seconds=0)
        jax.jit(lambda x: x + 1).lower(1.0).compile()
        """,
        check=False,
        env={"JAX_TRACEBACK_FILTERING": "auto"},
    )
    assert "in interrupted" in finished.stderr
    assert finished.stderr.endswith("KeyboardInterrupt\n")
    assert "in <module>" in finished.stderr
    assert PACKAGE not in finished.stderr


LIBRARY = """
def call(function, *arguments):
    return function(*arguments)
"""
PROGRAM = """
class Net:
    def __init__(self):
        def create(n):
            return noted()
        self.made = call(create, 1)

def model():
    return noted()

def main():
    return call(noted), call(model), Net().made, noted()
"""


@pytest.mark.parametrize("library", ["modelling", "pytest"])
def test_the_line_that_calls_a_library_that_calls_back(library):
    """A model that a library calls is followed by the line that calls the library; a program that one runs is not."""
    names = {"noted": caller, "__name__": "train"}
    exec(compile(LIBRARY, f"/venv/site-packages/{library}/calls.py", "exec"), names)
    exec(compile(PROGRAM, "/home/me/train.py", "exec"), names)
    called, in_model, in_net, direct = (text.replace("/home/me/", "") for text in names["main"]())
    assert direct == "train.py:12 in main"
    assert called == f"train.py:12 in main, via {library}"
    assert in_net == "train.py:5 in Net.__init__.<locals>.create, from train.py:12 in main"
    assert in_model == "train.py:9 in model" + ", from train.py:12 in main" * (library == "modelling")
