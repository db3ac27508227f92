"""Measurements of Holdfast on this machine. `python -m bench` runs all, `python -m bench NAME` one."""
