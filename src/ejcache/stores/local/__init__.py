"""Entries on a local disk."""
