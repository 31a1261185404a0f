"""Describes what a function reads: the walk over live objects, and what it writes of each kind of object."""
