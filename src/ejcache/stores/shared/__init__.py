"""Entries on shared storage."""
