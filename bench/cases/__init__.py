"""One module per case or family of cases; every module here is found and imported."""
