"""What each kind of Python object contributes to a fingerprint. Objects are read, and never asked to run code."""
