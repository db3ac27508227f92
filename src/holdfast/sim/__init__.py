"""The world in a box: production code on virtual time, from one seed, faults at the ports, checkers on every commit.

The simulation supplies time, chance, network, disk and process execution, and nothing else.
"""
