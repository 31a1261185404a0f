"""The command line: arguments, tables, progress and exit codes. Nothing in here imports JAX."""
