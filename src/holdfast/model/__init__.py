"""The API kinds, one per file, and the tables and predicates that the rest of the system reads.

This package imports no other package of Holdfast, reads no clock and does no I/O.
"""
