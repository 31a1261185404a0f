"""Compile and time candidates."""
