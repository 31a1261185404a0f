"""The trees of arguments and outputs as JSON."""
