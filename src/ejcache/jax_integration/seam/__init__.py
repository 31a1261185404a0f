"""Every touch of JAX's internals."""
