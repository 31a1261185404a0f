"""Programs that must start warm: compiled before the run, and compilations forbidden where none may happen."""
