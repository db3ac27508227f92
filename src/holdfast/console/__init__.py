"""The console: what its pages read, aggregated in the cells, and who is signed in."""
