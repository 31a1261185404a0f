"""The files between which a call is made: of the project by content, of installed distributions by their records."""
