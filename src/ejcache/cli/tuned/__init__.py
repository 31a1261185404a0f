"""The commands of `ejcache tuned`."""
