"""Every named bound: sizes, counts, periods, and how old an input may be and still decide.

One table, so that a reader can see what the system tolerates; each loop, queue, batch and retry names its bound here.
"""

from __future__ import annotations

# Objects and requests
MAX_BODY_BYTES = 3 * 1024 * 1024
MAX_NESTING = 64
MAX_OBJECT_BYTES = 1536 * 1024
MAX_FINALIZERS = 32
MAX_OWNERS = 32
MAX_LABELS = 128
PORTS_PER_REPLICA = 16
MAX_REPLICAS = 100_000
MAX_WRITES_PER_COMMIT = 4096
LIST_PAGE = 500
LIST_PAGE_MAX = 10_000

# Placement
BATCH = 256
BATCHES_IN_FLIGHT = 4
RESERVATION_TTL_S = 60.0
RESERVATION_MAX_S = 600.0
RECLAIM_GRACE_S = 10.0
DECISIONS_KEPT = 5_000
REASON_NODES_SHOWN = 5

# Leases and fencing
NODE_LEASE_TTL_S = 15.0
NODE_RENEW_EVERY_S = 5.0
LEASE_PAGE_NODES = 500
LEADER_TTL_S = 15.0
LEADER_RENEW_EVERY_S = 5.0
CLOCK_DRIFT = 0.01
KILL_BOUND_S = 5.0
TENURE_S = 40.0

# Controllers
RESYNC_S = 30.0
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 30.0
RETRY_BUDGET_PER_S = 10.0
RETRY_BUDGET_BURST = 50
QUEUE_BACKOFF_FIRST_S = 1.0
QUEUE_BACKOFF_MAX_S = 60.0
READ_BACK_ATTEMPTS = 8

# Watches and history
WATCH_RING_EVENTS = 100_000
WATCHER_BACKLOG_EVENTS = 50_000
WATCH_MAX_S = 3600.0
BOOKMARK_EVERY_S = 60.0
HISTORY_REVISIONS = 500_000
EVENT_TTL_S = 3600.0
EVENTS_KEPT = 20_000
AUDIT_KEPT = 200_000

# The link between a region and the global cell
REGION_REPORT_EVERY_S = 5.0
ENDPOINT_TTL_S = 60.0
GRANT_LEASE_S = 120.0

# How old an input may be and still decide what it decided fresh (architecture, section 1).
MAX_AGE_S = {
    "node-report": NODE_LEASE_TTL_S,
    "region-summary": 60.0,
    "grant": GRANT_LEASE_S,
    "policy": 24 * 3600.0,
    "override": 60.0,
}

# Progress: how long a replica may stay at a stage before someone is told.
STAGE_DEADLINE_S = {
    "Queued": 3600.0,
    "Reserved": RESERVATION_MAX_S,
    "Bound": 60.0,
    "Starting": 120.0,
    "Ready": 60.0,
    "Unknown": 300.0,
}
