"""Functions as the examples of eight libraries jit them: direct mode answers them at the third start, or why not."""
