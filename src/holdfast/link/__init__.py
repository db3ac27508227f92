"""Exchange between a region and the global cell. The region connects; the global cell never connects to a region.

All exchange is level-triggered: it follows from the state on both sides. A lost message, a restart of either side or a
long partition only causes delay.
"""
