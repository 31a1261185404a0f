"""Devices that this process does not have: targets, what is known of them, and programs for them."""
