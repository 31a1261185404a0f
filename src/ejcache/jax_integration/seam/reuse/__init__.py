"""What `reuse` needs of JAX's internals."""
