"""Looking after a store: what to evict (`plan`), evicting (`eviction`), and checking every entry (`audit`)."""
