"""Cases about what is outside the function: the process, the host, installed code."""
