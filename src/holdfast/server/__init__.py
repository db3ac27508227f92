"""The HTTP API of a cell: one route table, resources, watches, discovery and flow control."""
