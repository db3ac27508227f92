"""Label keys that several packages use. A label of a single package is defined there."""

from __future__ import annotations

LABEL_WORKLOAD = "holdfast.dev/workload"
"""The Workload that a Replica, Reservation, Binding, Assignment, SchedulingRequest or Endpoint belongs to."""
LABEL_DRILL = "holdfast.dev/drill"
"""Taint and node selector that separate the nodes of a drill from other work."""
