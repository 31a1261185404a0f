"""Restarts without tracing: a process with the inputs of earlier ones takes their lowered programs (docs/reuse.md)."""
