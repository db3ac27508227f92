"""Label keys that several parts write or read. A label of one part alone is defined in that part."""

from __future__ import annotations

LABEL_WORKLOAD = "holdfast.dev/workload"
"""The Workload that a Replica, Reservation, Binding, Assignment, SchedulingRequest or Endpoint belongs to."""
LABEL_DRILL = "holdfast.dev/drill"
"""Keeps the work of a drill and that of others on different nodes: a taint, and a node selector."""
