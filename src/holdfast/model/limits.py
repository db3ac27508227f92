"""Every named bound: sizes, counts and periods. How old an input may be and still decide is in `ages`.

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
# What any store takes in one transaction (etcd: 128 operations): whoever joins writes, or decides many, stays below.
WRITES_JOINED = 100
BYTES_JOINED = 1_000_000
LIST_PAGE = 500
LIST_PAGE_MAX = 10_000
MAX_CAUSES = 100
MAX_HEADER_BYTES = 64 * 1024
MAX_SELECTOR_BYTES = 4096
MAX_SELECTOR_TERMS = 64
MAX_PATCH_OPERATIONS = 1000
UPDATE_ENTRIES_KEPT = 10
WRITE_ATTEMPTS = 8

# How many shapes of managedFields are kept once for all objects that have them.
OWNED_FIELDS_SHARED = 4096
# How many templates' hashes are remembered.
TEMPLATE_HASHES_KEPT = 4096
# How many labels that were found sound are remembered.
LABELS_REMEMBERED = 16_384

# The HTTP server
HEADER_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 75.0
# How old the list of revoked certificates may be that a request is checked against.
REVOCATION_SEEN_S = 0.5
SEND_STALL_S = 30.0
# A request that took longer is logged, however well it ended.
SLOW_REQUEST_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0
DRAIN_S = 10.0
WATCH_CHUNK_BYTES = 256 * 1024
ENCODE_SLICE = 500
FUTURE_REVISION_WAIT_S = 3.0

# Placement
BATCH = 256
BATCHES_IN_FLIGHT = 4
RESERVATION_TTL_S = 60.0
RESERVATION_MAX_S = 600.0
RECLAIM_GRACE_S = 10.0
DECISIONS_KEPT = 5_000
REASON_NODES_SHOWN = 5
PLANNER_MEMO_ENTRIES = 1024
PLANNER_LEVELS_AHEAD = 8
# How many shapes of GPU work are weighed one by one; more are rounded up until they are so few.
PLANNER_SHAPES = 256
ASSUMED_TTL_S = 30.0
STATUS_WRITES_PER_COMMIT = WRITES_JOINED
BATCHES_PER_ORDER = 8
PREEMPTION_NODES_TRIED = 64
# Among victims that are equal by number and rank, so many more nodes are looked at for some that hurt less.
HURT_NODES_TRIED = 8
# Workloads, and claims that do not serve, that a plan reads about for one ask: its Decision keeps them all.
WORKLOADS_WEIGHED = 256
VICTIM_SETS_TRIED = 512
VICTIMS_PER_REPLICA = 16
# A victim the authority would not let go is not named again so soon, so that others are found.
SPARED_S = 30.0
SPARED_VICTIMS = 64
UNPLACED_DECISIONS_PER_S = 20.0
UNPLACED_DECISIONS_BURST = 100
UNPLACED_DECISION_AGAIN_S = 600.0
BINDS_PER_CALL = 256
FAIR_SLICE = 32
SHADOW_PLANS_EVERY_S = 0.25
SHADOW_ENTRIES = 16
TRIAL_DECISIONS = 1_000
DEADLINE_RISK_SHARE = 0.25
WAKE_PAUSE_FIRST_S = 0.05
REST_MIN_S = 0.001
POLICY_EXPRESSIONS = 16
EXPRESSION_CHARS = 1000
EXPRESSION_LOOPS = 2
EXPRESSIONS_COMPILED = 256
WAKE_PAUSE_MAX_S = 2.0

# Leases and fencing
NODE_LEASE_TTL_S = 15.0
# Each node is looked at when its lease would lapse, by a timer; this is for what no timer and no event told of.
NODE_HEALTH_LOOK_EVERY_S = NODE_LEASE_TTL_S
NODE_RENEW_EVERY_S = 5.0
LEASE_PAGE_NODES = 500
LEADER_TTL_S = 15.0
LEADER_RENEW_EVERY_S = 5.0
CLOCK_DRIFT = 0.01
KILL_BOUND_S = 5.0
TENURE_S = 40.0
# The wait below is counted in steps that are written down; no jump of the clock makes one longer than this.
TENURE_STEP_S = 5.0
TENURE_STEP_MAX_S = 6.0
# After an ordinal was taken from a region: how long its work can go on there, with drift, kills and one such jump.
TENURE_WAIT_S = TENURE_S * (1 + 2 * CLOCK_DRIFT) + KILL_BOUND_S + TENURE_STEP_MAX_S

# The authority of a region
COMMIT_ROUNDS = 16
CONFLICT_WAIT_S = 0.5
# Renewals of one moment are one commit; the holder counts from sending, so what it waits here is lost to its lease.
LEASE_GATHER_S = 1.0
LEASE_GATHER_PART = 1 / 15  # of the lease, where that is shorter
LEASE_REGISTER_S = 0.25  # a node that begins waits for no more than this, if it is the first to come
LEASE_KEPT_S = 24 * 3600.0
AUTHORITY_TICK_S = 1.0
USE_REPORT_EVERY_S = 1.0
ORPHANS_EVERY_S = 10.0
PRUNE_EVERY_S = 30.0

# Controllers
RESYNC_S = 30.0
# Kinds that are read for their age: a watch of one that is silent for so long is doubted, and the kind is listed.
SILENCE_S = {"LeasePage": NODE_LEASE_TTL_S / 3, "Region": 5.0}
NOTICES_LOGGED = 20
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 30.0
RETRY_BUDGET_PER_S = 10.0
RETRY_BUDGET_BURST = 50
QUEUE_BACKOFF_FIRST_S = 1.0
# How soon a request looks again at room that others were planned into before it.
CONTESTED_AGAIN_S = 2.0
QUEUE_BACKOFF_MAX_S = 60.0
# A request behind another that asks for the same is tried by itself only so often: what that one is told holds for it.
BEHIND_AGAIN_S = 300.0
TRIES_REMEMBERED = 1_000
READ_BACK_ATTEMPTS = 8

# What runs controllers, and the client
QUEUE_KEYS_MAX = 200_000
# Decisions that go over all replicas of a workload are made at most so often for each.
WORKLOAD_PACE_S = 0.05
# What only sums up is written at once for so many keys a second; in a burst each waits a moment, and is written once.
STATUS_CALM_S = 1.0
CALM_KEYS_PER_S = 50.0
CALM_KEYS_BURST = 100
BUG_BACKOFF_S = 60.0
RECONNECT_MAX_S = 5.0
RESTORED_AFTER_LISTS = 8
MERGED_WRITES = WRITES_JOINED
RELEASE_RETRY_S = 1.0
STOP_DEADLINE_S = 10.0
# The part of the time systemd allows between two signs of life.
WATCHDOG_TOLD_AT = 0.4
CONNECT_DEADLINE_S = 3.0
CALL_DEADLINE_S = 10.0
COMMIT_DEADLINE_S = 15.0
READ_ATTEMPTS = 4
HTTP_CONNECTIONS = 64
WATCH_LINE_BYTES_MAX = 8 * 1024 * 1024

# The gate
COMMIT_ATTEMPTS = 8
CONFLICT_WAIT_S = 0.5
READ_BACK_S = 5.0
NAME_ATTEMPTS = 8
AUDIT_WRITES_SHOWN = 256
AUDIT_TEXT_CHARS = 1000
AUDIT_FLUSH_EVERY_S = 1.0
AUDIT_REFUSALS_HELD = 1024
AUDIT_TRIM_EVERY = 5_000
NOTICES_PER_CALL = 1024
EVENT_SWEEP_EVERY_S = 30.0
COLLECT_AGAIN_S = 1.0
COLLECT_RESYNC_S = 120.0

# Watches and history
WATCH_RING_EVENTS = 10_000
WATCHER_BACKLOG_EVENTS = 50_000
WATCH_MAX_S = 3600.0
BOOKMARK_EVERY_S = 60.0
HISTORY_REVISIONS = 500_000
# History that only replays of kept decisions need is kept up to this.
HISTORY_REVISIONS_MAX = 2_000_000
COMPACT_EVERY_S = 300.0
EVENT_TTL_S = 3600.0
EVENTS_KEPT = 10_000
AUDIT_KEPT = 200_000

# The store
WATCH_CHUNK_EVENTS = 1_000
OBJECT_RING_EVENTS = 2_000
STORE_QUEUE_COMMITS = 20_000
STORE_GROUP_COMMITS = 1_024
COMPACT_CHUNK_REVISIONS = 2_000
RESTORE_GAP_REVISIONS = 1 << 32
BACKUP_PAGE_RECORDS = 10_000
STORE_BUSY_TIMEOUT_S = 5.0
STORE_WAL_BYTES = 64 * 1024 * 1024
# The log is copied into the file from so many pages on, beside the commits; from the second on by the writer itself.
STORE_CHECKPOINT_PAGES = 1_000
STORE_CHECKPOINT_PAGES_MOST = 8_000

# The store on etcd
ETCD_TXN_OPERATIONS = 128
ETCD_TXN_RESERVE = 16
ETCD_REQUEST_BYTES = 1_400_000
ETCD_CALL_S = 5.0
ETCD_DIAL_S = 3.0
ETCD_KEEPALIVE_S = 10.0
ETCD_PAGE_KEYS = 2_000
ETCD_PROBE_EVERY_S = 5.0
ETCD_SILENCE_S = 12.0
ETCD_PUBLISH_S = 3.0
ETCD_EPOCH_RECORDS = 1_000
ETCD_MARK_EVERY_S = 5.0

# Serving and rollouts
DRAIN_DELAY_S = 2.0
DRAIN_BLOCKED_SHOWN = 10
REVISIONS_KEPT = 10

# The link between a region and the global cell
REGION_REPORT_EVERY_S = 5.0
REGION_REPORT_LEAST_S = 1.0
REGION_REPORTS_PER_LOSS = 6
REGION_SUSPECT_PART = 4 / 9
REGION_FIRST_REPORT_S = 15.0
# How long replicas wait in a full region, while another one has room, before they are given to that one; how often room
# elsewhere is looked for meanwhile; for how long they do not come back, four times as long each further time; how many
# of these are remembered.
MOVE_ON_AFTER_S = 60.0
MOVE_ON_LOOK_S = 30.0
MOVED_ON_FOR_S = 600.0
MOVED_ON_MAX_S = 24 * 3600.0
MOVES_KEPT = 16
REGION_LOOK_EVERY_S = 1.0
PEER_PROBE_TIMEOUT_S = 1.5
PEER_PROBE_FAILURES = 2
LINK_FLUSH_EVERY_S = 0.1
# A restored cell jumps so far ahead that no region, and no agent, can have heard of a later epoch from its former life.
EPOCHS_PER_INCARNATION = 1_000_000
EPOCH_MAX = 2**48  # what an agent may say that it knows to be over
REJOIN_LOOK_EVERY_S = 1.0
JOIN_TOKEN_KEPT_S = 86400.0
JOIN_TOKENS_SWEPT = 16
LINK_BATCH = WRITES_JOINED
ENDPOINT_TTL_S = 60.0
GRANT_LEASE_S = 120.0
# Work that a region places on its own while it is cut off: how long it runs unless renewed, and how long in all after
# the cut. Its part of the grant comes back by time once not even a slow clock can still let it run.
PROVISIONAL_RUN_S = 600.0
PROVISIONAL_MAX_S = 3600.0
PROVISIONAL_RETURN_SPARE_S = 600.0

# Recovery
RECOVERY_LOOK_EVERY_S = 0.5
RECOVERY_WAVE = 64
FLEET_GAUGES_EVERY_S = 5.0
REPAIRS_PER_MINUTE = 10
REPAIR_LOOK_EVERY_S = 15.0
FINALIZERS_LOOK_EVERY_S = 60.0
REPAIRS_PER_PASS = 64
UNKNOWN_FINALIZER_S = 3600.0
RECOVERY_STARTS_PER_S = 20.0
RECOVERY_BURST_S = 1.0
RECOVERY_STABLE_S = 30.0
# A target that shows no progress for this part of the promise's deadline, and never sooner, is left for another region;
# so many times at most for one workload in one incident.
RECOVERY_STUCK_PART = 0.25
RECOVERY_STUCK_MIN_S = 20.0
RECOVERY_TARGETS_LEFT = 4
CAPACITY_LOST_FOR_S = 10.0
HOLDS_PER_PASS = 64
HOLD_REFUSED_KEPT_S = 5.0
BACKING_STEPS = 20_000
BACKING_CLASSES = 200
OVERRIDES_KEPT_S = 7 * 24 * 3600.0
# An override that a region takes while the global cell is out of reach lasts at most so long.
BREAK_GLASS_MAX_S = 1800.0
# How often the ends of overrides are looked at by the clock that only passes, and how far a stored end may be off it.
COUNTDOWN_EVERY_S = 1.0
COUNTDOWN_OFF_S = 1.0
# After so many reports in a row without an answer the global cell counts as out of reach.
REACH_FAILURES = 2
# How often a region looks whether the certificate it shows to the global cell was replaced.
LINK_CERTIFICATE_LOOK_EVERY_S = 2.0
# Reports that are remembered until the global cell says when it heard them.
REPORTS_UNHEARD = 64

# How nodes join
JOIN_TTL_S = 3600.0
JOIN_TTL_MAX_S = 7 * 86400.0
JOIN_USES_MAX = 256
NODE_GENERATION_MAX = 10**15
NODE_CERTIFICATE_S = 30 * 86400.0
NODE_CERTIFICATE_MIN_S = 10.0
NODE_CERTIFICATE_MAX_S = 366 * 86400.0
# A certificate is renewed when this much of its life is over, give or take the jitter of every period.
NODE_CERTIFICATE_RENEW_AT = 0.6
JOIN_LOOK_EVERY_S = 2.0
# The journal of revocations: lines beyond two per node before it is written anew, and when a failed write is repeated.
NODE_JOURNAL_SPARE_LINES = 1000
NODE_JOURNAL_RETRY_S = 5.0
STREAMS_CHECKED_EVERY_S = 5.0

# Autoscaling
AUTOSCALE_LOOK_EVERY_S = 15.0
AUTOSCALE_TOLERANCE = 0.1
AUTOSCALE_READY_SHARE = 0.9
AUTOSCALE_WISHES_KEPT = 64
LOAD_MAX_AGE_S = 120.0
NODE_POOL_LOOK_EVERY_S = 5.0
NODE_POOL_START_S = 120.0
# So soon after it is there, what waits has found a new node of a pool, if it can use it.
NODE_POOL_TAKEN_S = 15.0

# The node agent
AGENT_FLUSH_EVERY_S = 0.1
# So long after it was accepted a word is said once more, if one before it got no answer and may come behind it.
AGENT_DOUBTED_AGAIN_S = 5.0
# That a first start has begun is told only if it takes this long; the deadline of the stage Bound is far behind it.
START_TOLD_AFTER_S = 2.0
AGENT_CALL_TIMEOUT_S = 10.0
AGENT_RETRY_FIRST_S = 0.2
AGENT_RETRY_MAX_S = 5.0
# Below the deadline of the stage Bound: work must be found by listing before it is taken to be stuck.
AGENT_RESYNC_S = 40.0
AGENT_STARTS_IN_FLIGHT = 8
AGENT_START_HANDSHAKE_S = 20.0
AGENT_EXIT_DRAIN_S = 5.0
AGENT_ENDED_TASKS_KEPT = 64
NODE_REPORT_QUIET_S = 1.0
NODE_REPORT_EVERY_S = 10.0
START_FAILURES_WINDOW_S = 600.0
START_FAILURES_MAX = 3
START_FAILURES_WORKLOADS = 2
QUARANTINE_S = 300.0
ASK_SILENCE_S = 20.0
ASKS_MAX = 1_000
ASKS_PER_AGENT = 32
ASK_CHUNKS_HELD = 16
ASK_LINES = 1_000
ASK_FOLLOW_EVERY_S = 0.3
ASK_EXEC_MAX_S = 3600.0
ASK_OUTPUT_BYTES = 256 * 1024
RESTART_BACKOFF_FIRST_S = 1.0
RESTART_BACKOFF_MAX_S = 300.0
RESTART_BACKOFF_RESET_S = 600.0
RESTARTS_ON_FAILURE_MAX = 6
WATCHDOG_LEAD_S = 2.0
WATCHDOG_FORCE_S = 0.5
TASK_PROCESSES_MAX = 512
TASK_UID_FIRST = 61_000
TASK_UIDS = 4_000
ARTIFACT_BYTES_MAX = 4 * 1024**3
ARTIFACT_STORE_BYTES = 16 * 1024**3
ARTIFACT_TIMEOUT_S = 30.0
ARTIFACTS_TOLD = 64
LOG_FILE_BYTES = 4 * 1024 * 1024
LOG_FILES_KEPT = 3
LOG_TAIL_LINES_MAX = 100_000
PROBE_OUTPUT_BYTES = 1024

# Progress: how long a replica may stay at a stage before someone is told.
STAGE_DEADLINE_S = {
    "Queued": 3600.0,
    "Reserved": RESERVATION_MAX_S,
    "Bound": 120.0,
    "Starting": 120.0,
    "Ready": 60.0,
    "Unknown": 300.0,
}
