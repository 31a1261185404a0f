"""What a process was started from: its command line, environment, project, packages and machine."""
