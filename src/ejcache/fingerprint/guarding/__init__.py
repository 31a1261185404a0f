"""The parts of guards: what is said of a value that a library reads, where it is found, and the sources of modules."""
