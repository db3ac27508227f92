"""Composition of a cell: its parts, the controller table, the process of `holdfast serve`, backup and restore."""
