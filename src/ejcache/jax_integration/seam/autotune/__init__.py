"""What `autotune` needs of JAX's internals."""
