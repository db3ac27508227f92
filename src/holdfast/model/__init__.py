"""The nouns: every API kind, one per file, and the tables the rest of the system reads.

Nothing here imports another part of Holdfast, reads a clock, or does I/O.
"""
