"""A platform on one machine: what it consists of, where its files are, and the processes that make it up.

It starts the same programs an operator would start on many machines (`holdfast serve`, `holdfast agent`) and adds
nothing to them; only it knows that they share a machine.
"""
