"""The fingerprint of a function: a digest of everything that its trace can read, or the reason why there is none."""
