"""The parts of coverage: whose code runs, what it may not do while it is recorded, and what C code does meanwhile."""
