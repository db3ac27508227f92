"""Drills: real failures injected into a running platform, with timed stages, invariant checks and a report."""
