"""One command per file. Each imports what it needs when it runs."""
