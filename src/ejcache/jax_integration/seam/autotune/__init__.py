"""What the wing `autotune` needs of JAX's internals."""
