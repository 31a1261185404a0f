"""Looking after a store: what to evict (`eviction_plan`), evicting (`eviction`), and checking every entry (`audit`)."""
