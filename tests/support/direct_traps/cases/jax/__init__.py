"""Cases about JAX."""
