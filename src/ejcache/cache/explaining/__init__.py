"""What the author of a program changed, found by comparing what is known about two compilations."""
