# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs in which one process asks twice, and the second asking differs in a way that the question may not see.

Nothing changes between their three starts. `n` is the number of the asking where a text needs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attack_driver import Place

_E = "ejcache.ejit(F, reuse_lowering=True)"

_TEXTS = {
    "global_and_cleared_caches": """
S = 1.0
@ejcache.ejit(reuse_lowering=True)
def f(x):
    return x * S
show(f(2.0)); S = 3.0; jax.clear_caches(); show(f(2.0)); S = 4.0; f.clear_cache(); show(f(2.0))
""",
    "methods_of_two_instances": """
class T:
    def __init__(self, k): self.k = k
    def step(self, x): return x * self.k
show(ejcache.ejit(T(2).step, reuse_lowering=True)(2.0), ejcache.ejit(T(3).step, reuse_lowering=True)(2.0))
""",
    "one_instance_that_changes": """
class T:
    k = 2
    def step(self, x): return x * self.k
t = T()
show(ejcache.ejit(t.step, reuse_lowering=True)(2.0)); t.k = 3
show(ejcache.ejit(t.step, reuse_lowering=True)(2.0))
""",
    "decorated_method_with_static_self": """
import functools
class T:
    def __init__(self, k): self.k = k
    @functools.partial(ejcache.ejit, static_argnums=0, reuse_lowering=True)
    def step(self, x): return x * self.k
a, b = T(2), T(3)
show(a.step(2.0), b.step(2.0), a.step(2.0))
""",
    "static_self_equal_by_hash": """
import functools
class T:
    def __init__(self, k): self.k = k
    def __hash__(self): return 1
    def __eq__(self, other): return self.k == other.k
    @functools.partial(ejcache.ejit, static_argnums=0, reuse_lowering=True)
    def step(self, x): return x * self.k
show([T(k).step(2.0) for k in (2, 3, 2, 5)])
""",
    "functions_made_in_a_loop": """
def make(k):
    @ejcache.ejit(reuse_lowering=True)
    def f(x): return x * k
    return f
show([make(k)(2.0) for k in (2, 3, 4)])
""",
    "lambdas_in_a_list": """
show([f(2.0) for f in [ejcache.ejit(g, reuse_lowering=True) for g in (lambda x: x + 1, lambda x: x * 3, lambda x: -x)]])
""",
    "partials": """
import functools
def f(k, x): return x * k
show([ejcache.ejit(functools.partial(f, k), reuse_lowering=True)(2.0) for k in (2, 3)])
show([ejcache.ejit(functools.partial(functools.partial(f, k)), reuse_lowering=True)(2.0) for k in (4, 5)])
""",
    "decorators_of_one_function": """
import functools
def times(k):
    def wrap(f):
        @functools.wraps(f)
        def g(x): return f(x) * k
        return g
    return wrap
def f(x): return x + 1
show([ejcache.ejit(times(k)(f), reuse_lowering=True)(2.0) for k in (2, 3)], ejcache.ejit(f, reuse_lowering=True)(2.0))
""",
    "callable_instances": """
class C:
    def __init__(self, k): self.k = k
    def __call__(self, x): return x * self.k
show([ejcache.ejit(C(k), reuse_lowering=True)(2.0) for k in (2, 3)])
""",
    "one_code_with_two_globals": """
import types
def f(x): return x * K
show([ejcache.ejit(types.FunctionType(f.__code__, {"K": k, "__name__": "__main__"}, "f"), reuse_lowering=True)(2.0) for k in (2, 3)])
""",
    "executed_code": """
def load(k):
    space = {"__name__": "made"}
    exec(f"def f(x):\\n    return x * {k}", space)
    return space["f"]
show([ejcache.ejit(load(k), reuse_lowering=True)(2.0) for k in (2, 3)])
""",
    "module_loaded_again": """
import importlib, helper
show(ejcache.ejit(helper.f, reuse_lowering=True)(2.0))
os.environ["HELPER"] = "same"
helper.K = 5
show(ejcache.ejit(helper.f, reuse_lowering=True)(2.0))
importlib.reload(helper)
show(ejcache.ejit(helper.f, reuse_lowering=True)(2.0))
""",
    "default_arguments": """
fs = []
for k in (2, 3):
    def f(x, k=k): return x * k
    fs.append(ejcache.ejit(f, reuse_lowering=True))
show([f(2.0) for f in fs])
""",
    "defaults_changed": """
def f(x, k=2): return x * k
show(ejcache.ejit(f, reuse_lowering=True)(2.0)); f.__defaults__ = (3,); jax.clear_caches()
show(ejcache.ejit(f, reuse_lowering=True)(2.0))
""",
    "class_attribute": """
class T:
    k = 2
    @classmethod
    def step(cls, x): return x * cls.k
class U(T):
    k = 3
show(ejcache.ejit(T.step, reuse_lowering=True)(2.0), ejcache.ejit(U.step, reuse_lowering=True)(2.0))
""",
    "static_methods_of_subclasses": """
class Base:
    def go(self, x): return self.inner(x)
class A(Base):
    def inner(self, x): return x + 1
class B(Base):
    def inner(self, x): return x + 2
show(ejcache.ejit(A().go, reuse_lowering=True)(2.0), ejcache.ejit(B().go, reuse_lowering=True)(2.0))
""",
    "gradient_and_value": """
def loss(x): return x ** 3
show(ejcache.ejit(loss, reuse_lowering=True)(2.0), ejcache.ejit(jax.grad(loss), reuse_lowering=True)(2.0))
show(ejcache.ejit(jax.grad(jax.grad(loss)), reuse_lowering=True)(2.0), ejcache.ejit(jax.checkpoint(loss), reuse_lowering=True)(2.0))
""",
    "vmaps_over_two_axes": """
def f(x): return jnp.cumsum(x)
a = jnp.arange(9.0).reshape(3, 3)
show([ejcache.ejit(jax.vmap(f, in_axes=i, out_axes=o), reuse_lowering=True)(a) for i in (0, 1) for o in (0, 1)])
""",
    "under_transformations": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return jnp.sin(x).sum()
a = jnp.arange(9.0).reshape(3, 3)
show(f(a), jax.grad(f)(a), jax.vmap(f)(a), jax.vmap(f, in_axes=1)(a), jax.jit(lambda a: f(a) * 2)(a), jax.jvp(f, (a,), (a,)))
""",
    "trees_that_hold_functions": """
@jax.tree_util.register_pytree_node_class
class Train:
    def __init__(self, p, tx): self.p, self.tx = p, tx
    def tree_flatten(self): return (self.p,), self.tx
    @classmethod
    def tree_unflatten(cls, tx, leaves): return cls(leaves[0], tx)
def tx(k):
    def update(p): return p - k
    return update
@ejcache.ejit(reuse_lowering=True)
def f(t): return t.tx(t.p)
show([f(Train(jnp.float32(2), tx(k))) for k in (2, 3, 4)])
""",
    "static_functions": """
import functools
def g(k, x): return x * k
f = ejcache.ejit(lambda x, h: h(x), static_argnums=1, reuse_lowering=True)
show([f(2.0, functools.partial(g, k)) for k in (2, 3)], [f(2.0, lambda x, k=k: x * k) for k in (4, 5)])
""",
    "static_objects_without_value": """
class O:
    def __init__(self, k): self.k = k
f = ejcache.ejit(lambda x, o: x * o.k, static_argnums=1, reuse_lowering=True)
show([f(2.0, O(k)) for k in (2, 3)], [f(2.0, o) for o in (O(4), O(5))])
""",
    "static_numbers": """
f = ejcache.ejit(lambda x, s: x + len(repr(s)) + len(type(s).__name__) * 10, static_argnums=1, reuse_lowering=True)
show([f(2.0, s) for s in (1, "1", 1.5, (1,), (1.5, "a"), None, False, 2**70, b"1")])
show(f(2.0, 0.0)); jax.clear_caches(); show(f(2.0, -0.0)); jax.clear_caches(); show(f(2.0, 0), f(2.0, float("nan")))
""",
    "static_ranges_and_slices": """
f = ejcache.ejit(lambda x, s: x + sum(range(9)[s] if isinstance(s, slice) else s), static_argnums=1, reuse_lowering=True)
show([f(2.0, s) for s in (range(3), range(4), frozenset({1}), frozenset({2}), slice(0, 2), slice(0, 3))])
""",
    "settings_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x + jax.random.normal(jax.random.key(0), ())
show(f(np.float32(2)))
jax.config.update("jax_default_prng_impl", "rbg"); show(f(np.float32(2)))
jax.config.update("jax_default_prng_impl", "threefry2x32"); jax.config.update("jax_threefry_partitionable", False)
show(f(np.float32(2)))
with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(): show(f(np.float32(2)))
""",
    "patched_helper": """
import helper
@ejcache.ejit(reuse_lowering=True)
def f(x): return helper.g(x)
show(f(2.0)); helper.g = lambda x: x * 9; jax.clear_caches(); show(f(2.0))
""",
    "patched_numpy_of_jax": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return jnp.sin(x)
show(f(2.0)); old = jnp.sin; jnp.sin = jnp.cos; jax.clear_caches(); show(f(2.0)); jnp.sin = old
""",
    "environment_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * int(os.environ.get("K", "2"))
show(f(2.0)); os.environ["K"] = "3"; jax.clear_caches(); show(f(2.0)); del os.environ["K"]; jax.clear_caches(); show(f(2.0))
""",
    "uncounted_variable_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * int(os.environ.get("MY_TOKEN", "2"))
show(f(2.0)); os.environ["MY_TOKEN"] = "3"; jax.clear_caches(); show(f(2.0))
""",
    "directory_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * num("k.json")
os.chdir("a"); show(f(2.0)); os.chdir("../b"); jax.clear_caches(); show(f(2.0))
""",
    "words_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * len(sys.argv)
show(f(2.0)); sys.argv += ["a"]; jax.clear_caches(); show(f(2.0))
""",
    "file_between": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * num("conf/k.json")
show(f(2.0)); Path("conf/k.json").write_text("3"); jax.clear_caches(); show(f(2.0)); Path("conf/k.json").write_text("2")
""",
    "threads": """
import threading
def make(k):
    def f(x): return x * k
    return ejcache.ejit(f, reuse_lowering=True)
out = {}
def work(k): out[k] = make(k)(2.0)
threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 9)]
for t in threads: t.start()
for t in threads: t.join()
show([out[k] for k in range(1, 9)])
""",
    "one_within_another": """
def make(k):
    @ejcache.ejit(reuse_lowering=True)
    def f(x): return x * k
    return f
@ejcache.ejit(reuse_lowering=True)
def outer(x): return make(2)(x) + make(3)(x)
show(outer(2.0), make(4)(2.0), make(2)(2.0))
""",
    "lowered_ahead": """
def make(k):
    def f(x): return x * k
    return ejcache.ejit(f, reuse_lowering=True)
f = make(2)
show(f.lower(2.0).compile()(2.0), make(3)(2.0), f(2.0), make(4).lower(2.0).compile()(2.0), f.trace(2.0).lower().compile()(2.0))
print("RESULT", jax.eval_shape(make(5), 2.0))
""",
    "lowered_ahead_first": """
def make(k, n):
    def f(x): return (x * k).reshape(n)
    return ejcache.ejit(f, reuse_lowering=True)
print("RESULT", jax.eval_shape(make(5, (1, 1)), 2.0))
print("RESULT", jax.make_jaxpr(make(6, (1,)))(2.0))
show(make(2, ())(2.0))
print("RESULT", jax.eval_shape(make(5, (1, 1)), 2.0))
""",
    "freed_functions": """
import gc
def make(k):
    def f(x): return x * k
    return f
for k in range(5):
    g = ejcache.ejit(make(k), reuse_lowering=True); show(g(2.0)); del g; gc.collect()
""",
    "custom_rules": """
def make(k):
    @jax.custom_vjp
    def f(x): return x * 2
    f.defvjp(lambda x: (f(x), None), lambda r, g: (g * k,))
    return f
show([ejcache.ejit(jax.grad(make(k)), reuse_lowering=True)(2.0) for k in (2, 3)])
show([ejcache.ejit(make(k), reuse_lowering=True)(2.0) for k in (4, 5)])
def jvp(k):
    @jax.custom_jvp
    def f(x): return x
    f.defjvp(lambda p, t: (f(*p), t[0] * k))
    return f
show([jax.grad(ejcache.ejit(jvp(k), reuse_lowering=True))(2.0) for k in (2, 3)])
""",
    "context_variables": """
import contextvars
K = contextvars.ContextVar("K", default=2)
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * K.get()
show(f(2.0)); K.set(3); jax.clear_caches(); show(f(2.0))
""",
    "retry_with_other_options": """
def step(x, remat):
    g = jax.checkpoint(jnp.sin) if remat else jnp.sin
    return jax.grad(lambda x: g(g(x)))(x) + (1 if remat else 0)
show(ejcache.ejit(lambda x: step(x, False), reuse_lowering=True)(2.0))
jax.clear_caches()
show(ejcache.ejit(lambda x: step(x, True), reuse_lowering=True)(2.0))
""",
    "results_of_another_tree": """
def make(k):
    def f(x): return {f"k{k}": x} if k < 3 else (x, x)
    return ejcache.ejit(f, reuse_lowering=True)
show([make(k)(2.0) for k in (1, 2, 3)])
""",
    "results_that_are_no_arrays": """
import collections
def make(k):
    def f(x): return [x, None, (), {"n": None}] if k else (x, [None])
    return ejcache.ejit(f, reuse_lowering=True)
show(make(0)(2.0), make(1)(2.0), make(0)(jnp.ones(2)))
""",
    "numbers_and_arrays_in_turns": """
@ejcache.ejit(reuse_lowering=True)
def f(x): return x * 2
show(f(2), f(2.0), f(np.float32(2)), f(jnp.float32(2)), f(True), f(np.int8(2)), f(2j), f(jnp.bfloat16(2)), f(jnp.ones(2)), f(jnp.ones((1, 2))))
show(f(2), f(2.0), f(np.float32(2)), f(jnp.float32(2)), f(True), f(np.int8(2)), f(2j), f(jnp.bfloat16(2)), f(jnp.ones(2)), f(jnp.ones((1, 2))))
""",
    "names_given": """
def make(k):
    def f(x): return x * k
    return f
show([ejcache.ejit(make(k), reuse_lowering=True, name=f"f{k % 2}")(2.0) for k in (2, 3, 4)])
""",
    "declared_once_and_changed": """
phase = 1
k = 2
@ejcache.ejit(reuse_lowering={"phase": lambda: phase})
def f(x): return x * phase * k
show(f(2.0)); phase = 2; jax.clear_caches(); show(f(2.0)); phase = 1; k = 5; jax.clear_caches(); show(f(2.0))
""",
    "counters_in_a_trace": """
n = 0
@ejcache.ejit(reuse_lowering=True)
def f(x):
    global n
    n += 1
    return x * n
show(f(2.0), f(jnp.ones(2)), f(jnp.ones(3)), f(2.0))
""",
    "generated_names": """
import itertools
count = itertools.count(2)
def make():
    k = next(count)
    def f(x): return x * k
    f.__qualname__ = f.__name__ = "gen"
    return ejcache.ejit(f, reuse_lowering=True)
show([make()(2.0) for _ in range(3)])
""",
    "same_name_in_two_modules": """
import types
def module(name, k):
    m = types.ModuleType("twin"); exec(f"def f(x):\\n    return x * {k}", m.__dict__); return m
show([ejcache.ejit(module("twin", k).f, reuse_lowering=True)(2.0) for k in (2, 3)])
""",
}


def _program(name: str, text: str):
    def build(p: Place) -> None:
        p.reuses = False
        p.write(
            "proj/helper.py",
            'import os\nK = 2 if "HELPER" not in os.environ else 7\ndef f(x):\n    return x * K\ndef g(x):\n    return x + 1\n',
        )
        p.write("proj/a/k.json", "2")
        p.write("proj/b/k.json", "3")
        p.write("proj/conf/k.json", "2")
        p.program(text)

    build.__name__ = build.__qualname__ = name
    return build


for _name, _text in _TEXTS.items():
    globals()[_name] = _program(_name, _text)
