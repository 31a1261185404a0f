"""The commands of `ejcache`: a module for each, or for a pair of opposites."""
