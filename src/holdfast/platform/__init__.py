"""A platform on one machine (`holdfast up`): its design, its files and its processes.

It runs the same programs that an operator runs on many machines (`holdfast serve`, `holdfast agent`).
"""
