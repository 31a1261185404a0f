"""Direct mode: from a function's call to its executable, without tracing the function."""
