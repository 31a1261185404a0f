"""`ejcache run`."""
