"""Every setting, its value and its origin."""
