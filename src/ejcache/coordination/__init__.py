"""Leases and single flight: one process compiles, the others wait."""
