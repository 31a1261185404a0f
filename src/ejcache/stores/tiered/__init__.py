"""A node-local store over a shared one."""
