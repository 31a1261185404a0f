"""From a lowered module and its options to a key."""
