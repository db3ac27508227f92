"""Services that every component uses: ports (clock, randomness, uids), backoff, metrics, logging, tasks."""
