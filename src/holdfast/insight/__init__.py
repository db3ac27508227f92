"""Queries about decisions: timeline, why-not, what-if, loss forecast, replay. Callable in process; writes nothing."""
