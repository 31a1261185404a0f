"""Tables of tuned configurations that other libraries read."""
