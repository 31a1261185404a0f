"""Cases about the language Python."""
