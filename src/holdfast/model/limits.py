"""Limits that several packages share: sizes, counts and periods. `input_freshness` bounds the age of decision inputs.

A limit with one user stands beside that user. docs/limits.md lists all of them.
"""

from __future__ import annotations

# Objects and requests

# Replicas of one workload, and the upper end of every count in its spec. A higher number is refused.
MAX_REPLICAS = 100_000
# Writes in one commit through the API. More are refused: a commit is one transaction, and the store is busy meanwhile.
MAX_WRITES_PER_COMMIT = 4096
# Maximum writes that a batcher puts into one transaction. A full batch is sent; the rest starts the next one.
# 100 leaves room for compares below etcd's default limit of 128 operations per transaction.
BATCH_WRITES_MAX = 100
# Maximum bytes that a batcher puts into one transaction. A full batch is sent; the rest starts the next one.
# Below etcd's default request size of 1.5 MiB.
BATCH_BYTES_MAX = 1_000_000
# Objects per page of a list by our clients, and per read while the server filters a list. The same as kubectl's chunk.
LIST_PAGE_OBJECTS = 500
# Distinct templates, labels, field sets of managedFields and the like, each held once for all objects that share them.
# At the bound, the parts that were not used since it was last reached are dropped.
SHARED_PARTS_CACHED = 4096

# Placement

# Replicas per placement batch, and keys per pass of a batching controller. The rest waits for the next batch.
PLACEMENT_BATCH_MAX = 256
# Placement batches that the scheduler has in flight to the authority. At the limit planning waits for a response.
BATCHES_IN_FLIGHT_MAX = 4
# Maximum lifetime of a Reservation that waits for its victims, with all extensions. The authority then releases it.
RESERVATION_MAX_S = 600.0
# Nodes, devices or owners named as examples in a refusal. The rest is only counted.
REASON_EXAMPLES_MAX = 5
# Newest decisions that the guard of a policy revision judges, and the upper end of its `minDecisions`.
POLICY_TRIAL_DECISIONS_MAX = 1_000
# Length of one CEL expression. A longer one is refused.
EXPRESSION_CHARS_MAX = 1000

# Leases and fencing

# Duration of a node lease. If it is not renewed, the node becomes unreachable. Three renewals fit into it.
NODE_LEASE_TTL_S = 15.0
# Interval at which an agent renews its node lease. One third of the lease, so that two renewals may be lost.
NODE_RENEW_EVERY_S = 5.0
# Nodes per LeasePage. The next node starts another page. 500 keep a page below 64 KiB and 5,000 nodes in ten pages.
LEASE_PAGE_NODES = 500
# Duration of a leader lease. A leader that does not renew it loses the election. The Kubernetes default.
LEADER_TTL_S = 15.0
# Assumed maximum rate error between two clocks. Every lease holder stops this much earlier, every grantor waits longer.
CLOCK_DRIFT = 0.01
# Assumed maximum time from killing a task to its end. The authority adds it before it counts a node's work as stopped.
KILL_DURATION_MAX_S = 5.0
# Lifetime of a tenure. Without another response of the global cell, exclusive work of scope Global stops then.
TENURE_S = 40.0
# Most that one step of the tenure wait counts for, so that one forward clock jump shortens the wait by at most that.
TENURE_STEP_MAX_S = 6.0
# Commit attempts of one batch after conflicts. After that, its items are rejected with Waiting, and the caller retries.
COMMIT_ROUNDS_MAX = 16

# Controllers and clients

# Interval at which informers and controllers list everything again. Bounds how long a missed event goes unnoticed.
RESYNC_S = 30.0
# First pause of exponential backoff between retries.
BACKOFF_FIRST_S = 0.05
# Longest pause of exponential backoff between retries.
BACKOFF_MAX_S = 30.0
# First pause before an unschedulable request is retried. Doubles with every attempt.
QUEUE_BACKOFF_FIRST_S = 1.0
# Longest pause before an unschedulable request is retried.
QUEUE_BACKOFF_MAX_S = 60.0
# Attempts to read back a commit without a response. After that, its result stays unknown; the caller decides again.
READ_BACK_ATTEMPTS = 8
# Longest pause before a watch or the link reconnects. Short, because nothing is learned while it lasts.
RECONNECT_MAX_S = 5.0
# Time for one commit. After that, its result is unknown (Ambiguous) and is read back.
COMMIT_DEADLINE_S = 15.0
# Attempts of a read. After that, the caller gets the fault.
READ_ATTEMPTS = 4
# Interval of watch bookmarks, as in Kubernetes. They let a client continue after a long silence.
BOOKMARK_EVERY_S = 60.0
# Events held per cell. The oldest are deleted.
EVENTS_MAX = 10_000

# The link between a region and the global cell

# Pending time in a full region before replicas spill over to a region that has room.
SPILLOVER_AFTER_S = 60.0
# Delay in which the link batches changes. A full batch is sent at once.
LINK_FLUSH_EVERY_S = 0.1
# Epoch increment on restore. Larger than the epochs any cell can issue between a backup and its restore, so every
# epoch after the restore is newer than any that a region or agent has seen.
EPOCHS_PER_INCARNATION = 1_000_000
# Duration of a grant lease. Without contact to the global cell, a region stops spending the grant after this time.
GRANT_LEASE_S = 120.0
# How long provisional work may run in all after the last contact with the global cell. After that, the agent stops it.
PROVISIONAL_MAX_S = 3600.0

# Repair and overrides

# Interval at which repair checks every replica.
REPAIR_CHECK_EVERY_S = 15.0
# How long an uneven spread must last before a running replica is moved, unless the workload says otherwise. Long,
# because a move interrupts one replica, and a node that returned may fail again.
REBALANCE_AFTER_S = 900.0
# How long a replica may stay in a stage. After that, repair reports StageDeadlineExceeded, or asks for another node.
STAGE_DEADLINE_S = {
    "Queued": 3600.0,
    "Reserved": RESERVATION_MAX_S,
    "Bound": 120.0,
    "Starting": 120.0,
    "Ready": 60.0,
    "Unknown": 300.0,
}
# How long an ended Override is kept for reading after the incident. After that, it is deleted.
ENDED_OVERRIDE_RETENTION_S = 7 * 24 * 3600.0
# Time after the end of an EmergencyQuota until usage above the quota is evicted whatever disruption budgets say, if the
# Override states no `drainSeconds`. Long enough to drain a few replicas one after the other.
OVER_QUOTA_DRAIN_S = 600.0
# Longest break-glass override. A region gives it without the global cell, so it must end before long.
BREAK_GLASS_MAX_S = 1800.0

# How nodes join

# Default lifetime of a join token.
JOIN_TOKEN_TTL_S = 3600.0
# Default lifetime of a node certificate.
NODE_CERTIFICATE_LIFETIME_S = 30 * 86400.0

# Autoscaling

# Interval at which autoscale checks each workload. The HorizontalPodAutoscaler default.
AUTOSCALE_CHECK_EVERY_S = 15.0
# Interval at which a node pool is checked.
NODE_POOL_CHECK_EVERY_S = 5.0

# The node agent

# Interval of blank lines on the stream of calls to an agent. After 2.5 intervals without data the agent reconnects.
AGENT_CALL_KEEPALIVE_S = 20.0
# Lines of one log request. A higher `tail` is cut to it.
LOG_TAIL_LINES_MAX = 100_000
