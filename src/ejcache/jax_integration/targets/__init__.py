"""Targets: descriptions of devices that another process has, for which this one compiles."""
