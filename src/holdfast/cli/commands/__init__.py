"""One command per file. A command imports its dependencies when it runs."""
