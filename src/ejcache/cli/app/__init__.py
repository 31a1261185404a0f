"""The command line as a whole: the table of commands, and what the shell completes."""
