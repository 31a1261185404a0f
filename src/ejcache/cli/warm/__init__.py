"""`ejcache warm`."""
