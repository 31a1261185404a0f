"""Measures the kernel on this device: `python -m tuned_kernel.tune`, then `ejcache tuned push` (pyproject.toml)."""

from tuned_kernel import example, scaled_add

if __name__ == "__main__":
    scaled_add(*example())
    print(scaled_add.choose(*example()).configuration)
