"""What Python values hold, as data that is equal in every process, and the files and distributions of code."""
