"""Clients of shared storage: one interface over GCS, S3, fsspec and mounted directories."""
