"""Holdfast: a multi-region scheduler control plane."""

__version__ = "0.1.0"
