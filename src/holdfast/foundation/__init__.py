"""Services that every component uses: ports (clock, randomness, identity), backoff, metrics, logging, tasks."""
