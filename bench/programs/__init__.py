"""What the cases run in fresh processes; each ends with one line of JSON on standard output."""
