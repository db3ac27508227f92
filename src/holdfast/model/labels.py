"""Label keys that several packages use. A label of a single package is defined there."""

from __future__ import annotations

LABEL_WORKLOAD = "holdfast.dev/workload"
"""The Workload that a Replica, Reservation, Binding, Assignment, SchedulingRequest or Endpoint belongs to."""
LABEL_DRILL = "holdfast.dev/drill"
"""Taint and node selector that separate the nodes of a drill from other work."""
LABEL_REGION = "topology.kubernetes.io/region"
"""Region of an object that the global cell reads from a region. Not stored."""
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_OS = "kubernetes.io/os"
LABEL_ARCHITECTURE = "kubernetes.io/arch"
LABEL_CRON_WORKLOAD = "holdfast.dev/cron-workload"
"""The CronWorkload that a Workload is a run of."""
