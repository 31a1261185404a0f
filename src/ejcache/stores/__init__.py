"""Where bytes under a key are kept. Nothing in here knows what the bytes mean."""
