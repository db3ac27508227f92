"""The typed client of a cell: its contract, the HTTP client, and the synchronous client of commands."""
