"""XLA's own caches of autotuning results and kernels."""
