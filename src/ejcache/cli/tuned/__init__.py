"""What commands do for tuned records, where without `--tuned` they do it for entries."""
