"""Records of tuned configurations and where they are kept."""
