"""What happened: lines that each process writes, on this host and on shared storage, and what is folded of them."""
