"""Reads and writes the store of a cache as the settings say: what is looked up, kept, counted and explained."""
