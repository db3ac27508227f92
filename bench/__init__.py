"""Benchmarks of Holdfast. `python -m bench` runs all, `python -m bench NAME` runs one."""
