"""`ejcache autotune`."""
