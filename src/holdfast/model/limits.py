"""Every named bound: sizes, counts and periods. How old a decision input may be is in `ages`.

One table, so that a reader can see what the system tolerates. Each loop, queue, batch and retry names its bound here.
"""

from __future__ import annotations

# Objects and requests

# Largest request body. A larger one is refused with 413. The same limit as kube-apiserver.
MAX_BODY_BYTES = 3 * 1024 * 1024
# Deepest nesting of a request body. A deeper one is refused before a decoder recurses into it.
MAX_NESTING = 64
# Largest stored object. A larger one is refused. Equals etcd's default request size, so every store can hold it.
MAX_OBJECT_BYTES = 1536 * 1024
# Finalizers per object. More are refused; no kind needs more than a few.
MAX_FINALIZERS = 32
# Owner references per object. More are refused; garbage collection visits every one.
MAX_OWNERS = 32
# Labels per object. More are refused; every label is validated and copied to replicas.
MAX_LABELS = 128
# Ports of a template. More are refused. A node has 1,000 ports by default, so 16 leave room for 60 replicas.
PORTS_PER_REPLICA_MAX = 16
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
# Objects per page of the typed client, and per read while the server filters a list. The same as kubectl's chunk.
LIST_PAGE_OBJECTS = 500
# Objects read at once for an unfiltered list, if the client asks for larger pages. The rest takes further reads.
LIST_PAGE_OBJECTS_MAX = 10_000
# Field errors reported for one object. Validation stops there: the object is refused anyway.
MAX_CAUSES = 100
# Size of all request headers. A larger request is refused with 431.
MAX_HEADER_BYTES = 64 * 1024
# Length of a label or field selector. A longer one is refused.
MAX_SELECTOR_BYTES = 4096
# Terms of a selector. More are refused: every object of a list is tested against every term.
MAX_SELECTOR_TERMS = 64
# Operations of a JSON patch. More are refused.
MAX_PATCH_OPERATIONS = 1000
# managedFields entries of operation Update per object. The oldest are merged into one entry, as in Kubernetes.
MANAGED_FIELDS_UPDATES_MAX = 10
# Attempts of a patch, delete or eviction that names no resourceVersion. Then the client gets the conflict.
WRITE_ATTEMPTS = 8

# Distinct field sets of managedFields held once for all objects that share them. At the bound the cache is emptied.
OWNED_FIELDS_CACHED = 4096
# Template hashes cached. Replicas by the thousand share a template, so each is hashed once.
TEMPLATE_HASHES_CACHED_MAX = 4096
# Label pairs cached as valid. The same labels are on every replica of a workload, so each pair is checked once.
VALID_LABELS_CACHED_MAX = 16_384

# The HTTP server

# Time to send the request headers. Then the connection is closed.
HEADER_TIMEOUT_S = 10.0
# Time to send the request body. Then the request is refused with 408.
BODY_TIMEOUT_S = 30.0
# Idle time of a connection before the server closes it. Above the 60 s that common proxies keep one open.
KEEP_ALIVE_S = 75.0
# Maximum age of the certificate revocation list that a request is checked against. Then the file is read again.
REVOCATION_CACHE_S = 0.5
# Time a client may take to accept one chunk of a stream. Then the stream is closed, and the client connects again.
SEND_STALL_TIMEOUT_S = 30.0
# Requests that take longer are logged, whatever their result.
SLOW_REQUEST_S = 1.0
# Time for the TLS handshake. Then the connection is closed.
HANDSHAKE_TIMEOUT_S = 10.0
# Time that requests in flight get when the server stops. Then they are cancelled.
SERVER_DRAIN_S = 10.0
# Bytes of watch events sent as one chunk. More events follow in the next chunk.
WATCH_CHUNK_BYTES = 256 * 1024
# Objects encoded before other requests get their turn. Encoding 500 takes a few milliseconds.
ENCODE_SLICE_OBJECTS = 500
# Wait for a resourceVersion that this server has not seen yet. Then 504 (list) or 410 (watch), as in Kubernetes.
FUTURE_REVISION_WAIT_S = 3.0

# Placement

# Replicas per placement batch, and keys per pass of a batching controller. The rest waits for the next batch.
PLACEMENT_BATCH_MAX = 256
# Placement batches that the scheduler has in flight to the authority. Then planning waits for a response.
BATCHES_IN_FLIGHT_MAX = 4
# Lifetime of a Reservation that is not bound. Then the authority releases it.
RESERVATION_TTL_S = 60.0
# Maximum lifetime of a Reservation that waits for its victims, with all extensions. Then the authority releases it.
RESERVATION_MAX_S = 600.0
# Maximum termination grace of reclaimable work that is preempted. Short, so that recovery gets its capacity soon.
RECLAIM_GRACE_S = 10.0
# Decisions kept per region. The oldest are deleted.
DECISIONS_MAX = 5_000
# Nodes, devices or owners named as examples in a refusal. The rest is only counted.
REASON_EXAMPLES_MAX = 5
# Results that the planner caches until a node's static properties change. At the bound the cache is emptied.
PLANNER_CACHE_ENTRIES_MAX = 1024
# Replicas scored ahead on one node in a single vectorized step, while identical replicas are placed.
PLANNER_LOOKAHEAD_REPLICAS = 8
# Distinct GPU request shapes that the fragmentation score distinguishes. More are rounded up until they are this few.
PLANNER_GPU_SHAPES_MAX = 256
# How long the scheduler assumes an accepted placement that no watch has shown. Then the request is scheduled again.
ASSUMED_TTL_S = 30.0
# Statuses of scheduling requests written in one transaction. The rest follows in the next one.
STATUS_WRITES_PER_COMMIT = BATCH_WRITES_MAX
# Batches planned from one sort of the queue. Then the queue is sorted again, so that new requests get their position.
BATCHES_PER_SORT = 8
# Nodes on which a preemption searches for victims, most promising first. At the bound the best set so far is taken.
PREEMPTION_NODES_MAX = 64
# Further nodes examined for a less disruptive victim set, once a set with the minimal count and priority is known.
# At the bound the planner takes the best set so far.
TIED_VICTIM_NODES_MAX = 8
# Workloads, and claims that do not serve, that a plan reads for one request. For workloads beyond the bound only
# the number of victims is compared with `maxUnavailable`. Bounded because the Decision stores all of them for replay.
PREEMPTION_WORKLOADS_READ_MAX = 256
# Victim sets compared per size and node. Beyond that a minimal set is built greedily instead of the cheapest one.
VICTIM_SETS_MAX = 512
# Victims of one replica. If more were needed, the node is not considered.
VICTIMS_PER_REPLICA_MAX = 16
# After the authority refuses a preemption victim, the request does not nominate it again for this long, so that the
# planner finds another victim.
REFUSED_VICTIM_BACKOFF_S = 30.0
# Refused victims remembered per request. The oldest is forgotten.
REFUSED_VICTIMS_MAX = 64
# Decisions recorded per second for requests that could not be placed. Beyond that the attempt leaves no Decision.
UNPLACED_DECISIONS_PER_S = 20.0
# Burst of the rate above.
UNPLACED_DECISIONS_BURST = 100
# Interval at which an unplaced request with unchanged reasons records another Decision.
UNPLACED_DECISION_REPEAT_S = 600.0
# Replicas of one tenant planned before the next tenant in fair order. Gangs are never split.
FAIR_QUEUE_SLICE = 32
# Minimum time between two shadow plans, so that a shadow policy costs little whatever the load.
SHADOW_PLANS_EVERY_S = 0.25
# Differences listed per shadow comparison. The rest is only counted.
SHADOW_ENTRIES_MAX = 16
# Newest decisions that the guard of a policy revision judges, and the upper end of its `minDecisions`.
POLICY_TRIAL_DECISIONS_MAX = 1_000
# Part of the time to a deadline that is left when a pending request is reported as DeadlineAtRisk.
DEADLINE_RISK_SHARE = 0.25
# Minimum pause after a failed attempt before an event triggers the next one. Doubles with every attempt.
EVENT_RETRY_PAUSE_FIRST_S = 0.05
# Shortest sleep of the scheduler. A shorter one could end before the request is due, and the scheduler would spin.
SCHEDULER_SLEEP_MIN_S = 0.001
# CEL expressions per list of a policy. More are refused.
POLICY_EXPRESSIONS_MAX = 16
# Length of one CEL expression. A longer one is refused.
EXPRESSION_CHARS_MAX = 1000
# Loops (macros such as `all`) of one CEL expression. More are refused: the expression runs for every node.
EXPRESSION_LOOPS_MAX = 2
# Compiled CEL expressions cached; the least recently used is dropped.
COMPILED_EXPRESSIONS_CACHED_MAX = 256
# Upper end of the doubling pause between a failed attempt and the next one that an event triggers.
EVENT_RETRY_PAUSE_MAX_S = 2.0

# Leases and fencing

# Node lease. If it is not renewed, the node becomes unreachable. Three renewals fit into it.
NODE_LEASE_TTL_S = 15.0
# Resync interval of node-health. A timer per node detects expiry; the resync covers a missed timer or event.
NODE_HEALTH_RESYNC_S = NODE_LEASE_TTL_S
# Interval at which an agent renews its node lease. One third of the lease, so that two renewals may be lost.
NODE_RENEW_EVERY_S = 5.0
# Nodes per LeasePage. The next node starts another page. 500 keep a page below 64 KiB and 5,000 nodes in ten pages.
LEASE_PAGE_NODES = 500
# Leader lease. A leader that does not renew it loses the election. The Kubernetes default.
LEADER_TTL_S = 15.0
# Interval at which a leader renews its lease. One third of the lease, so that two renewals may be lost.
LEADER_RENEW_EVERY_S = 5.0
# Assumed maximum rate error between two clocks. Every lease holder stops this much earlier, every grantor waits longer.
CLOCK_DRIFT = 0.01
# Assumed maximum time from killing a task to its end. The authority adds it before it counts a node's work as stopped.
KILL_DURATION_MAX_S = 5.0
# Lifetime of a tenure. Without another response of the global cell, exclusive work of scope Global stops then.
TENURE_S = 40.0
# The tenure wait is accumulated in durable steps. A step is due at this interval.
TENURE_STEP_S = 5.0
# Most that one step of the tenure wait counts for, so that one forward clock jump shortens the wait by at most that.
TENURE_STEP_MAX_S = 6.0
# Wait after a global ordinal is withdrawn from a region until its work has certainly stopped there: one tenure, clock
# drift on both sides, the kill, and one clock jump. Then another region may run the ordinal.
TENURE_WAIT_S = TENURE_S * (1 + 2 * CLOCK_DRIFT) + KILL_DURATION_MAX_S + TENURE_STEP_MAX_S

# The authority of a region

# Commit attempts of one batch after conflicts. Then its items are rejected with Waiting, and the caller retries.
COMMIT_ROUNDS_MAX = 16
# Wait for the conflicting write to become visible before the authority checks the batch again.
# How long a commit that lost a race waits to read the write that won. After it the commit is planned from what is
# there, and may lose again, up to COMMIT_ROUNDS. A write is published within milliseconds.
AUTHORITY_CONFLICT_WAIT_S = 0.5
# Delay in which node lease renewals are batched into one commit. The agent's lease counts from sending, so this delay
# is lost to it.
LEASE_BATCH_DELAY_S = 1.0
# Upper end of that delay as a part of the lease, for short leases.
LEASE_BATCH_DELAY_FRACTION = 1 / 15
# Batching delay while a node registers. Shorter, because a new node can do nothing before the response.
REGISTRATION_BATCH_DELAY_S = 0.25
# How long the lease record of a deleted node is kept after its last renewal. Until then a late agent finds its epoch.
ENDED_LEASE_RETENTION_S = 24 * 3600.0
# Interval of the authority's background jobs: fencing, reservation expiry, slot admission.
AUTHORITY_TICK_S = 1.0
# Interval at which the authority writes quota usage to the GrantCopies.
USAGE_REPORT_EVERY_S = 1.0
# Interval at which the authority searches for claims without a replica and releases them.
ORPHAN_CHECK_EVERY_S = 10.0
# Interval at which the authority deletes the oldest Decisions.
DECISION_PRUNE_EVERY_S = 30.0

# Controllers

# Interval at which informers and controllers list everything again. Bounds how long a missed event goes unnoticed.
RESYNC_S = 30.0
# Maximum watch silence for kinds whose age is evidence (leases, region reports). After that the informer lists the
# kind, so that a stalled watch is not mistaken for a dead node or region.
WATCH_SILENCE_MAX_S = {"LeasePage": NODE_LEASE_TTL_S / 3, "Region": 5.0}
# Events that one pass of a controller writes to the log. The rest is only counted there; all are recorded as Events.
EVENTS_LOGGED_PER_PASS_MAX = 20
# First pause of exponential backoff between retries.
BACKOFF_FIRST_S = 0.05
# Longest pause of exponential backoff between retries.
BACKOFF_MAX_S = 30.0
# Retries per second that a client may make. Beyond that it fails at once, so that retries do not add to an overload.
RETRY_BUDGET_PER_S = 10.0
# Burst of the retry budget.
RETRY_BUDGET_BURST = 50
# First pause before an unschedulable request is retried. Doubles with every attempt.
QUEUE_BACKOFF_FIRST_S = 1.0
# Retry interval of a request whose room was taken by requests planned before it. Short: the room may become free.
OUTCOMPETED_RETRY_S = 2.0
# Longest pause before an unschedulable request is retried.
QUEUE_BACKOFF_MAX_S = 60.0
# Retry interval of a request that waits behind an identical one (jittered to 50 to 100 %). The result of the first
# request holds for all of them; the retry only guards against a wrong grouping.
GROUP_MEMBER_RETRY_S = 300.0
# Deleted requests whose attempts are remembered, so that a recreated one keeps its backoff. The oldest is forgotten.
RECENT_ATTEMPTS_MAX = 1_000
# Attempts to read back a commit that got no response. Then its result stays unknown, and the caller decides again.
READ_BACK_ATTEMPTS = 8

# The controller runtime and the client

# Keys in one controller queue. A further key is dropped; the next resync finds it. Twice the largest tested fleet.
QUEUE_KEYS_MAX = 200_000
# Workers of one controller. A table row with more is rejected at start.
# Minimum time between two decisions about one workload, for controllers that read all its replicas every time.
WORKLOAD_DECISION_INTERVAL_S = 0.05
# Debounce of summary statuses in a burst: a key waits this long, and all changes in that time become one write.
STATUS_DEBOUNCE_S = 1.0
# Keys per second that are not debounced. Beyond that rate a key waits STATUS_DEBOUNCE_S.
DEBOUNCE_FREE_KEYS_PER_S = 50.0
# Burst of the rate above.
DEBOUNCE_FREE_KEYS_BURST = 100
# Pause after the gate rejects an outcome as invalid. That is a bug, and an immediate retry would fail the same way.
INVALID_OUTCOME_BACKOFF_S = 60.0
# Longest pause before a watch or the link reconnects. Short, because nothing is learned while it lasts.
RECONNECT_MAX_S = 5.0
# Consecutive lists at an older revision before the informer concludes that the cell was restored. It then starts over.
OLDER_LISTS_BEFORE_RESTORED = 8
# Writes of several controller outcomes that are committed together.
CONTROLLER_BATCH_WRITES_MAX = BATCH_WRITES_MAX
# Minimum pause before a rejected release is sent again. Most wait for a node to stop its work.
RELEASE_RETRY_MIN_S = 1.0
# Time that commits in flight get when a component stops. Then they are cancelled.
STOP_DEADLINE_S = 10.0
# Fraction of systemd's watchdog interval at which the process reports that it is alive. Two reports fit into it.
WATCHDOG_NOTIFY_FRACTION = 0.4
# Time to open a connection. Then the call fails as Unavailable.
CONNECT_DEADLINE_S = 3.0
# Time for one call other than a commit. Then the call fails as Unavailable.
CALL_DEADLINE_S = 10.0
# Time for one commit. Then its result is unknown (Ambiguous) and is read back.
COMMIT_DEADLINE_S = 15.0
# Attempts of a read. Then the caller gets the fault.
READ_ATTEMPTS = 4
# Connections of one client for calls. Further calls wait for a free one; watches have their own.
HTTP_CONNECTIONS_MAX = 64
# Longest line of a watch stream. A longer one ends the watch. Above MAX_OBJECT_BYTES after JSON escaping.
WATCH_LINE_BYTES_MAX = 8 * 1024 * 1024

# The gate

# Attempts of one commit after conflicts. Then the writer gets a Conflict and decides again.
COMMIT_ATTEMPTS = 8
# Wait for the conflicting write to become visible before the gate plans the commit again.
# The same for a commit of the gate, up to COMMIT_ATTEMPTS.
GATE_CONFLICT_WAIT_S = 0.5
# Time to read back a commit that got no response. Then the writer gets Ambiguous.
READ_BACK_TIMEOUT_S = 5.0
# Attempts to find a free name for `generateName`. Then the create fails with AlreadyExists.
NAME_ATTEMPTS = 8
# Writes listed in one audit record. The rest is only counted.
AUDIT_WRITES_PER_RECORD_MAX = 256
# Length of a text in an audit record. The rest is cut off.
AUDIT_TEXT_CHARS_MAX = 1000
# Interval at which refusals are appended to the audit log. A crash loses at most this much of them.
AUDIT_FLUSH_EVERY_S = 1.0
# Distinct refusals counted per flush. Further ones share one record per reason, so that the count stays true.
AUDIT_REFUSALS_MAX = 1024
# Audit records appended before the log is trimmed to AUDIT_RECORDS_MAX.
AUDIT_TRIM_EVERY_RECORDS = 5_000
# Events recorded per call. The rest is dropped and counted.
EVENTS_PER_CALL_MAX = 1024
# Interval at which expired and surplus Events are deleted.
EVENT_SWEEP_EVERY_S = 30.0
# Pause before garbage collection continues with the next batch, or checks again for the last dependent.
GARBAGE_COLLECTION_RETRY_S = 1.0
# Resync interval of garbage collection. Longer than others: it reads every object.
GARBAGE_COLLECTION_RESYNC_S = 120.0

# Watches and history

# Newest changes of a store held in memory for watches. A watch from an older revision reads them from the store.
WATCH_RING_EVENTS = 10_000
# Unread changes of one watcher. At the bound its watch ends with 410, and the client lists again.
WATCHER_BACKLOG_EVENTS_MAX = 50_000
# Maximum duration of a watch. Then the server ends it and the client continues, as in Kubernetes.
WATCH_DURATION_MAX_S = 3600.0
# Interval of watch bookmarks, as in Kubernetes. They let a client continue after a long silence.
BOOKMARK_EVERY_S = 60.0
# Revisions of history that are always kept. Older ones are compacted.
HISTORY_REVISIONS = 500_000
# Revisions of history kept at most, where stored Decisions need them for replay.
HISTORY_REVISIONS_MAX = 2_000_000
# Interval of compaction.
COMPACT_EVERY_S = 300.0
# Age at which an Event is deleted. The Kubernetes default.
EVENT_TTL_S = 3600.0
# Events held per cell. The oldest are deleted.
EVENTS_MAX = 10_000
# Audit records held per cell. The oldest are deleted.
AUDIT_RECORDS_MAX = 200_000

# The store

# Changes that a store hands to a watcher at once. The rest follows in the next chunk.
WATCH_CHUNK_EVENTS = 1_000
# Newest changes held per kind for watches of one kind. A watch from an older revision reads the store's history.
OBJECT_RING_EVENTS = 2_000
# Commits waiting for the disk. Beyond that a commit is refused with 429.
STORE_QUEUE_COMMITS_MAX = 20_000
# Commits made durable with one fsync. The rest waits for the next group.
STORE_GROUP_COMMITS_MAX = 1_024
# Rows deleted per transaction of compaction or trimming. Small, so that commits are not delayed.
COMPACT_CHUNK_REVISIONS = 2_000
# Revisions skipped by a restore. More than any cell commits between a backup and its restore, so no revision that a
# client has seen is used again.
RESTORE_GAP_REVISIONS = 1 << 32
# Log records per page of a backup.
BACKUP_PAGE_RECORDS = 10_000
# Time to wait for a locked database file. Then the store fails to open.
STORE_BUSY_TIMEOUT_S = 5.0
# Size to which SQLite truncates its write-ahead log after a checkpoint.
STORE_WAL_BYTES_MAX = 64 * 1024 * 1024
# Pages of the write-ahead log at which a background thread starts a checkpoint. SQLite's own default.
STORE_CHECKPOINT_PAGES = 1_000
# Pages of the write-ahead log at which the writer makes the checkpoint itself, because the thread does not keep up.
STORE_CHECKPOINT_PAGES_MAX = 8_000

# The store on etcd

# Operations per etcd transaction, unless the target says otherwise. etcd's default for --max-txn-ops.
ETCD_TXN_OPERATIONS = 128
# Operations of a transaction reserved for the store's own keys and for compares. A commit may write the rest.
ETCD_TXN_RESERVE = 16
# Time for one etcd call. Then another member is tried.
ETCD_CALL_TIMEOUT_S = 5.0
# Time to connect to an etcd member. Then another member is tried.
ETCD_CONNECT_TIMEOUT_S = 3.0
# Interval of gRPC keepalives to etcd, which detect a dead connection.
ETCD_KEEPALIVE_S = 10.0
# Keys read from etcd per call. The rest is read in the next call.
ETCD_PAGE_KEYS = 2_000
# Interval at which the watch on etcd asks for progress while it is silent.
ETCD_PROBE_EVERY_S = 5.0
# Maximum silence of the watch on etcd. Then it moves to another member. Two progress requests fit into it.
ETCD_WATCH_SILENCE_MAX_S = 12.0
# Time for a commit to appear in this server's watch. Then the watch moves to another member.
ETCD_PUBLISH_TIMEOUT_S = 3.0
# Records per key prefix (epoch) of a log in etcd. Then a new prefix begins, so that trimming deletes whole prefixes.
ETCD_LOG_EPOCH_RECORDS = 1_000
# Interval at which the newest revision is noted in a file beside the process. A wiped cluster is detected by it.
ETCD_MARKER_EVERY_S = 5.0

# Serving and rollouts

# Default delay between removing a replica from the Endpoint and stopping it, for proxies to notice.
DRAIN_DELAY_S = 2.0
# Blocking replicas listed in a drain status. The rest is only counted.
DRAIN_BLOCKED_LISTED_MAX = 10
# Revisions kept per workload for rollback, besides the last good one. The Kubernetes default.
ROLLOUT_REVISIONS_MAX = 10

# The link between a region and the global cell

# Longest interval between two reports of a region.
REGION_REPORT_EVERY_S = 5.0
# Shortest interval between two reports of a region, whatever its `lostAfterSeconds`.
REGION_REPORT_INTERVAL_MIN_S = 1.0
# Reports within `lostAfterSeconds`. Several must be lost before a region counts as lost.
REGION_REPORTS_PER_LOST_AFTER = 6
# Fraction of `lostAfterSeconds` after which a silent region is Suspect: 20 s of the default 45 s, four reports.
REGION_SUSPECT_FRACTION = 4 / 9
# Time for the first report of a new region. Until then assign waits, so that the first region does not get everything.
REGION_FIRST_REPORT_GRACE_S = 15.0
# Pending time in a full region before replicas spill over to a region that has room.
SPILLOVER_AFTER_S = 60.0
# Interval at which a workload with pending replicas checks other regions for room.
SPILLOVER_CHECK_EVERY_S = 30.0
# How long the workload avoids the region it left. Quadruples each further time.
SPILLOVER_AVOID_S = 600.0
# Longest avoidance of a region after spillover.
SPILLOVER_AVOID_MAX_S = 24 * 3600.0
# Avoided regions kept per workload; the oldest is dropped.
SPILLOVER_RECORDS_MAX = 16
# Interval at which the health of a silent region is assessed again.
REGION_CHECK_EVERY_S = 1.0
# Time for one probe of another region. Then it has failed.
PEER_PROBE_TIMEOUT_S = 1.5
# Consecutive failed probes after which a region reports a peer as unreachable. One failure proves nothing.
PEER_PROBE_FAILURES_MAX = 2
# Delay in which the link batches changes. A full batch is sent at once.
LINK_FLUSH_EVERY_S = 0.1
# Epoch increment on restore. Larger than the epochs any cell can issue between a backup and its restore, so every
# epoch after the restore is newer than any that a region or agent has seen.
EPOCHS_PER_INCARNATION = 1_000_000
# Highest fenced epoch accepted from an agent. A higher one is cut to it, so that a broken agent cannot exhaust epochs.
REPORTED_EPOCH_MAX = 2**48
# Interval at which a restored global cell checks whether every region has acknowledged the restore.
RESTORE_CHECK_EVERY_S = 1.0
# How long an expired join token is kept, so that its use can be inspected.
EXPIRED_JOIN_TOKEN_RETENTION_S = 86400.0
# Expired join tokens deleted with one join. The rest follows with the next join.
JOIN_TOKENS_DELETED_MAX = 16
# Keys that the link delivers in one transaction. The rest follows in the next one.
LINK_BATCH_MAX = BATCH_WRITES_MAX
# Lifetime of Endpoint addresses after the region's last report. Then other regions stop using them.
ENDPOINT_TTL_S = 60.0
# Lease of a Grant. Without contact to the global cell, a region stops spending the grant after this time.
GRANT_LEASE_S = 120.0
# How long provisional work runs unless the authority renews it.
PROVISIONAL_RUN_S = 600.0
# How long provisional work may run in all after the last contact with the global cell. Then the agent stops it.
PROVISIONAL_MAX_S = 3600.0
# Margin added to PROVISIONAL_MAX_S before the global cell reclaims the provisional share of a grant by time. Covers a
# slow clock in the region.
PROVISIONAL_RECLAIM_MARGIN_S = 600.0

# Recovery

# Interval at which an open Recovery compares need and progress.
RECOVERY_CHECK_EVERY_S = 0.5
# Assignment writes of one recovery pass. The rest follows in the next pass.
RECOVERY_WRITES_PER_PASS_MAX = 64
# Interval at which the global cell updates its fleet metrics.
FLEET_METRICS_EVERY_S = 5.0
# Repairs per region and minute. Further findings wait, so that a common cause does not restart everything.
REPAIRS_PER_MINUTE = 10
# Interval at which repair checks every replica.
REPAIR_CHECK_EVERY_S = 15.0
# Interval at which overdue finalizers are searched for.
FINALIZER_CHECK_EVERY_S = 60.0
# Findings handled in one pass of repair, and overdue finalizers reported in one pass. The rest follows in the next one.
REPAIRS_PER_PASS = 64
# Time after which a finalizer without a known owner is reported as overdue.
UNKNOWN_FINALIZER_DEADLINE_S = 3600.0
# Recovery replicas started per second in a region without a RecoveryBudget. Budgets set `startsPerSecond`.
RECOVERY_STARTS_PER_S = 20.0
# Burst of recovery starts, in seconds of the rate. Further starts wait for their turn.
RECOVERY_START_BURST_S = 1.0
# How long a returned region must be healthy without a break before failback begins.
RECOVERY_STABLE_S = 30.0
# Fraction of `deadlineSeconds` without progress after which a recovery target is abandoned. Three targets can be tried
# before the deadline.
RECOVERY_STALL_FRACTION = 0.25
# Minimum time without progress before a recovery target is abandoned, for short deadlines.
RECOVERY_STALL_MIN_S = 20.0
# Targets abandoned per workload and incident. Then the last target is kept, so that the search ends.
RECOVERY_TARGET_CHANGES_MAX = 4
# How long a region must report lost capacity before a Recovery opens, so that a restarting rack does not open one.
CAPACITY_LOSS_GRACE_S = 10.0
# Recovery slots requested in one pass of a budget. The rest follows in the next pass.
SLOT_REQUESTS_PER_PASS_MAX = 64
# How long a slot that the authority rejected is kept, so that its reason can be read. Then another node is tried.
REJECTED_SLOT_RETENTION_S = 5.0
# Steps of the exact search that matches critical workloads to recovery slots. At the bound the result of the greedy
# match is reported as inexact.
SLOT_SEARCH_STEPS_MAX = 20_000
# Classes of identical workloads in that search. With more, only the greedy match is made.
SLOT_SEARCH_CLASSES_MAX = 200
# How long an ended Override is kept for reading after the incident. Then it is deleted.
ENDED_OVERRIDE_RETENTION_S = 7 * 24 * 3600.0
# Longest break-glass override. A region gives it without the global cell, so it must end before long.
BREAK_GLASS_MAX_S = 1800.0
# Interval at which overrides are checked for expiry on the monotonic clock.
OVERRIDE_EXPIRY_CHECK_EVERY_S = 1.0
# Tolerated difference between a stored expiry and the monotonic clock. Beyond that the stored expiry is corrected.
EXPIRY_CLOCK_ERROR_MAX_S = 1.0
# Consecutive unanswered reports after which a region considers the global cell unreachable.
CONNECTIVITY_FAILURES_MAX = 2
# Interval at which a region checks whether its client certificate for the global cell was replaced.
LINK_CERTIFICATE_CHECK_EVERY_S = 2.0
# Sent reports remembered until the global cell confirms when they arrived. The oldest is forgotten.
UNCONFIRMED_REPORTS_MAX = 64

# How nodes join

# Default lifetime of a join token.
JOIN_TOKEN_TTL_S = 3600.0
# Longest lifetime of a join token. A longer one is refused.
JOIN_TOKEN_TTL_MAX_S = 7 * 86400.0
# Uses of one join token. More are refused.
JOIN_TOKEN_USES_MAX = 256
# Highest generation of a node identity. Generations are store revisions, which stay far below.
NODE_GENERATION_MAX = 10**15
# Default lifetime of a node certificate.
NODE_CERTIFICATE_LIFETIME_S = 30 * 86400.0
# Shortest lifetime of a node certificate. Shorter ones could expire before they are renewed.
NODE_CERTIFICATE_LIFETIME_MIN_S = 10.0
# Longest lifetime of a node certificate. A longer one is refused.
NODE_CERTIFICATE_LIFETIME_MAX_S = 366 * 86400.0
# Fraction of a certificate's lifetime after which the agent renews it (jittered). The rest is time for retries.
NODE_CERTIFICATE_RENEW_FRACTION = 0.6
# Interval at which an agent checks for a new join token and for the renewal of its certificate.
JOIN_TOKEN_POLL_S = 2.0
# Superseded lines of the revocation journal, beyond two per node, before the file is rewritten.
NODE_JOURNAL_EXTRA_LINES_MAX = 1000
# Pause before a failed write of the revocation journal is repeated.
NODE_JOURNAL_RETRY_S = 5.0
# Interval at which open streams are checked for revoked credentials. Then such a stream is closed.
STREAM_CREDENTIALS_CHECK_EVERY_S = 5.0

# Autoscaling

# Interval at which autoscale checks each workload. The HorizontalPodAutoscaler default.
AUTOSCALE_CHECK_EVERY_S = 15.0
# Deviation from the target load that changes nothing. The HorizontalPodAutoscaler default.
AUTOSCALE_TOLERANCE = 0.1
# Fraction of the replicas that must be ready before more are added. Replicas that do not become ready need no company.
AUTOSCALE_READY_FRACTION = 0.9
# Recommendations kept per workload for the stabilization window. The oldest is dropped.
AUTOSCALE_RECOMMENDATIONS_MAX = 64
# Maximum age of a pushed load. An older one is ignored, and the number of replicas stays.
LOAD_MAX_AGE_S = 120.0
# Interval at which a node pool is checked.
NODE_POOL_CHECK_EVERY_S = 5.0
# Time for a new pool node to start and register. Then the pool drops it.
NODE_POOL_START_TIMEOUT_S = 120.0
# Grace period for pending replicas to be scheduled onto a new pool node before the pool adds another.
POOL_NEW_NODE_GRACE_S = 15.0

# The node agent

# Delay in which the agent batches status reports.
AGENT_FLUSH_EVERY_S = 0.1
# Delay before the agent resends an accepted report. Needed because an earlier, unanswered report may arrive after it
# and overwrite it.
REPORT_RESEND_AFTER_S = 5.0
# How long the report "starting" of a first start waits for "running". Most starts are faster, and one write is saved.
# Far below the stage deadline of Bound.
STARTING_REPORT_DELAY_S = 2.0
# Time for one call of the agent. Then the call is retried.
AGENT_CALL_TIMEOUT_S = 10.0
# First pause between retries of the agent.
AGENT_RETRY_FIRST_S = 0.2
# Longest pause between retries of the agent.
AGENT_RETRY_MAX_S = 5.0
# Interval at which the agent lists its Bindings. Below the stage deadline of Bound, so that a Binding missed by the
# watch is started before the replica counts as stuck.
AGENT_RESYNC_S = 40.0
# Tasks that an agent starts at the same time. Further starts wait.
AGENT_STARTS_IN_FLIGHT_MAX = 8
# Time for a shim to report that its task runs. Then the start has failed and the shim is killed.
AGENT_START_TIMEOUT_S = 20.0
# Time for a shim to write the exit record after its task was killed. Then the shim is killed.
AGENT_EXIT_DRAIN_S = 5.0
# Ended tasks whose logs are kept on the node. The oldest are deleted.
AGENT_ENDED_TASKS_MAX = 64
# Debounce of node status reports that change only counts.
NODE_REPORT_DEBOUNCE_S = 1.0
# Interval at which such a node status report is sent at once.
NODE_REPORT_EVERY_S = 10.0
# Window in which failed starts count towards quarantine.
START_FAILURES_WINDOW_S = 600.0
# Failed starts within the window after which the node quarantines itself.
START_FAILURES_MIN = 3
# Distinct workloads among them. One workload alone proves nothing about the node.
START_FAILURES_WORKLOADS_MIN = 2
# Duration of a quarantine. Then the node accepts new work again.
QUARANTINE_S = 300.0
# Interval of blank lines on the stream of calls to an agent. After 2.5 intervals without data the agent reconnects.
AGENT_CALL_KEEPALIVE_S = 20.0
# Calls to agents in flight per server. Further calls are refused with 503.
AGENT_CALLS_MAX = 1_000
# Calls in flight per agent. Further calls are refused.
AGENT_CALLS_PER_NODE_MAX = 32
# Chunks of a response buffered for a slow client. Then the agent waits.
AGENT_CALL_CHUNKS_MAX = 16
# Log lines per chunk of a response, and lines buffered while following a log. Then the reader waits.
AGENT_CALL_LINES_MAX = 1_000
# Interval at which a followed log is checked for new lines.
LOG_FOLLOW_EVERY_S = 0.3
# Longest duration of `holdfast exec`. Then the command is killed.
AGENT_EXEC_MAX_S = 3600.0
# Output of `holdfast exec`. The rest is cut off.
AGENT_EXEC_OUTPUT_BYTES_MAX = 256 * 1024
# First pause before a task is restarted. Doubles with every failure.
RESTART_BACKOFF_FIRST_S = 1.0
# Longest pause before a task is restarted. The kubelet's default.
RESTART_BACKOFF_MAX_S = 300.0
# Run time after which the failure count of a task starts at one again. The kubelet's default.
RESTART_BACKOFF_RESET_S = 600.0
# Restarts with `restartPolicy: OnFailure`. Then the replica has failed. The default backoffLimit of a Kubernetes Job.
RESTARTS_ON_FAILURE_MAX = 6
# Time before the end of the lease at which exclusive work is told to stop.
WATCHDOG_LEAD_S = 2.0
# Time before the end of the lease at which exclusive work is killed.
WATCHDOG_KILL_LEAD_S = 0.5
# Processes and threads of one task. Further forks fail (TooManyProcesses).
TASK_PROCESSES_MAX = 512
# First user id for tasks without `user`. Above system users and below the range that systemd uses for DynamicUser.
TASK_UID_FIRST = 61_000
# Number of such user ids, and so of tasks per node that have one. Without a free one the start fails.
TASK_UID_COUNT = 4_000
# Size of one artifact. A larger one fails the start.
ARTIFACT_BYTES_MAX = 4 * 1024**3
# Size of all cached artifacts of a node. The least recently used are deleted.
ARTIFACT_CACHE_BYTES_MAX = 16 * 1024**3
# Time without data while an artifact is fetched. Then the start fails and is retried.
ARTIFACT_TIMEOUT_S = 30.0
# Cached artifacts that a node reports, newest first. The scheduler does not know of the rest.
ARTIFACTS_REPORTED_MAX = 64
# Size at which a task's log file is rotated.
LOG_FILE_BYTES_MAX = 4 * 1024 * 1024
# Rotated log files kept per task. The oldest is deleted.
LOG_FILES_MAX = 3
# Lines of one log request. A higher `tail` is cut to it.
LOG_TAIL_LINES_MAX = 100_000
# Output of an exec probe. The rest is cut off.
PROBE_OUTPUT_BYTES_MAX = 1024

# Progress

# How long a replica may stay in a stage. Then repair reports StageDeadlineExceeded, or asks for another node.
STAGE_DEADLINE_S = {
    "Queued": 3600.0,
    "Reserved": RESERVATION_MAX_S,
    "Bound": 120.0,
    "Starting": 120.0,
    "Ready": 60.0,
    "Unknown": 300.0,
}
