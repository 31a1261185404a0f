"""What every other subpackage uses: threads, locks, files, units."""
