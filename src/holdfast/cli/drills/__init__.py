"""Drills: failures done for real to a running platform, with a clock, the promises checked, and a report."""
