"""The only room that touches JAX: `seam` holds every contact with its internals, the rest builds on `seam`."""
