"""Direct mode: from a call of a function to its executable, without tracing the function."""
