"""`ejcache demo`."""
