"""What a region and the global cell exchange. The region dials; nothing dials it. Either side may restart at any time.

Everything here is level-triggered: what is copied or reported follows from the state on both sides, so a lost message,
a restart or a long cut costs only time.
"""
