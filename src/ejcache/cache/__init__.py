"""The policy over a store: what is looked up, kept, counted and explained."""
