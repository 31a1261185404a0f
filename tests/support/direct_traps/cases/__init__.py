"""The cases, by what changes between the two versions."""
