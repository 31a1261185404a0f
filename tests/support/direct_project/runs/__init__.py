"""Nine scripts as people write them: each has a run id, a time stamp, an output directory and its job's number."""
