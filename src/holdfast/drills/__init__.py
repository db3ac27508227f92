"""Drills: real failures injected into a running platform, with a clock, invariant checks and a report."""
