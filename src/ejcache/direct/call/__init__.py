"""A call and the way to run its executable, as JSON."""
