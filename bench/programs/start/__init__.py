"""Programs whose start is measured; each has `calls(size)`: what it calls one after the other, made without JAX."""
