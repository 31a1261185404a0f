"""What the author of a program changed, found by comparing the records of two compilations."""
