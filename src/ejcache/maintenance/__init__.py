"""Looking after a store: what to evict (`plan`), doing so (`execute`), and checking every entry (`audit`)."""
