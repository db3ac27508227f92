"""Deterministic simulation: production code on virtual time, driven by one seed, with faults, checked at every commit.

Only time, randomness, network, disk and process execution are simulated.
"""
