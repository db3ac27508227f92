"""The agent of a node: starts, probes, reports and stops the tasks that are bound to it."""
