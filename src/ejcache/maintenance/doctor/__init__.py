"""The checks of `ejcache doctor`."""
