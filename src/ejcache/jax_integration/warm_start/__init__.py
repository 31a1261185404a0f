"""Programs that must start warm: what forbids compilations where none may happen."""
