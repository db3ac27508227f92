"""Every metric of the system, declared once. Names are `holdfast_<area>_<what>_<unit|total>`; labels are bounded sets.

Hot loops bind their labels once (`.labels(…)`) and keep the child. Nothing here decides anything.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Runtime: queues, controllers, informers, elections
QUEUE_DEPTH = Gauge("holdfast_queue_depth_keys", "Keys that wait for a decision.", ["controller"])
QUEUE_WAIT = Histogram(
    "holdfast_queue_wait_seconds", "From the moment a key was due to the start of its decision.", ["controller"],
    buckets=_FAST,
)  # fmt: skip
QUEUE_RETRIES = Counter("holdfast_queue_retries_total", "Keys put back with a pause after a failure.", ["controller"])
QUEUE_DROPPED = Counter("holdfast_queue_dropped_total", "Keys refused by a full queue; a resync finds them again.",
                        ["controller"])  # fmt: skip

CONTROLLER_DECISIONS = Counter("holdfast_controller_decisions_total", "Decisions made.", ["controller"])
CONTROLLER_WRITES = Counter("holdfast_controller_writes_total", "Writes committed.", ["controller"])
CONTROLLER_COMMITS = Counter("holdfast_controller_commits_total", "Transactions committed.", ["controller"])
CONTROLLER_CONFLICTS = Counter("holdfast_controller_conflicts_total", "Commits lost to another writer.", ["controller"])
CONTROLLER_ERRORS = Counter(
    "holdfast_controller_errors_total", "Decisions that could not be carried out, by reason.", ["controller", "reason"]
)
CONTROLLER_DURATION = Histogram(
    "holdfast_controller_pass_seconds", "Deciding and carrying out one pass.", ["controller"], buckets=_FAST
)

INFORMER_OBJECTS = Gauge("holdfast_informer_objects_count", "Objects held in the cache.", ["cell", "kind"])
INFORMER_LISTS = Counter("holdfast_informer_lists_total", "Full lists made, by cause.", ["cell", "kind", "cause"])
INFORMER_REPAIRS = Counter(
    "holdfast_informer_repairs_total", "Changes that a list brought and no watch did.", ["cell", "kind"]
)
INFORMER_WATCH_ENDS = Counter(
    "holdfast_informer_watch_ends_total", "Watches that ended, by reason.", ["cell", "kind", "reason"]
)

ELECTION_LEADING = Gauge("holdfast_election_leading_flag", "1 while this process leads.", ["election"])
ELECTION_CHANGES = Counter("holdfast_election_changes_total", "Elections won and lost here.", ["election", "change"])

# Client
CLIENT_CALLS = Histogram(
    "holdfast_client_call_seconds", "Calls to another cell over HTTP.", ["verb", "outcome"], buckets=_FAST
)
CLIENT_RETRIES = Counter("holdfast_client_retries_total", "Reads repeated after a fault.", ["verb"])
CLIENT_BUDGET_EMPTY = Counter(
    "holdfast_client_budget_empty_total", "Retries not made as the budget was spent.", ["verb"]
)
CLIENT_READ_BACKS = Counter(
    "holdfast_client_read_backs_total", "Commits without an answer, by what reading back showed.", ["verdict"]
)

# Store
STORE_COMMITS = Counter("holdfast_store_commits_total", "Commits that reached the disk.")
STORE_ROWS = Counter("holdfast_store_rows_total", "Changes of keys that reached the disk.")
STORE_CONFLICTS = Counter("holdfast_store_conflicts_total", "Commits refused as a compare failed.")
STORE_GROUP = Histogram(
    "holdfast_store_group_commits",
    "Commits that shared one transaction.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024),
)
STORE_COMMIT = Histogram("holdfast_store_commit_seconds", "One transaction, synced to the disk.", buckets=_FAST)
STORE_QUEUE = Gauge("holdfast_store_queue_commits", "Commits on their way to the disk.")
STORE_COMPACTED = Gauge("holdfast_store_compacted_revision", "The revision history reaches back to.")
STORE_WATCHERS = Gauge("holdfast_store_watchers_count", "Streams of changes that are open.", ["kind"])
STORE_WATCHERS_EXPIRED = Counter(
    "holdfast_store_watchers_expired_total", "Streams ended as they fell behind.", ["kind"]
)

# Gate
GATE_COMMITS = Counter("holdfast_gate_commits_total", "Commits asked of the gate, by what became of them.", ["result"])
GATE_JOINS = Counter(
    "holdfast_gate_joins_total", "Nodes that asked for a certificate, by what became of it.", ["result"]
)
GATE_RETRIES = Counter("holdfast_gate_retries_total", "Commits planned again as another write came first.")

# The authority of a region
AUTHORITY_ANSWERS = Counter(
    "holdfast_authority_answers_total", "Answers to placement requests.", ["verb", "result", "reason"]
)
AUTHORITY_CONFLICTS = Counter("holdfast_authority_conflicts_total", "Commits lost to another writer of an object.")
AUTHORITY_READ_BACKS = Counter(
    "holdfast_authority_read_backs_total", "Commits without an answer, by what reading back showed.", ["verdict"]
)
AUTHORITY_COMMIT = Histogram(
    "holdfast_authority_commit_seconds",
    "From the first check of a batch to its durable answer.",
    ["verb"],
    buckets=_FAST,
)
AUTHORITY_LEASES = Gauge("holdfast_authority_leases_count", "Leases that are live by the authority's own book.")
AUTHORITY_FENCES = Counter("holdfast_authority_fences_total", "Node epochs fenced.")
AUTHORITY_CLAIMS = Gauge("holdfast_authority_claims_count", "Claims in the ledger, by state.", ["state"])
EVENTS_DROPPED = Counter("holdfast_gate_events_dropped_total", "Events that could not be kept.")

# The node agent
AGENT_TASKS = Gauge("holdfast_agent_tasks_count", "Work that runs on this node, or is being started or stopped.")
AGENT_START = Histogram("holdfast_agent_start_seconds", "From the decision to start work until it runs.", buckets=_FAST)
AGENT_EXITS = Counter("holdfast_agent_exits_total", "Runs that ended, by reason.", ["reason"])
AGENT_REPORTS = Counter("holdfast_agent_reports_total", "Status writes, by what became of them.", ["result"])
AGENT_CERTIFICATE_LEFT = Gauge(
    "holdfast_agent_certificate_left_seconds", "How long the certificate this agent shows is still good."
)
LINK_CERTIFICATE_ENDS = Gauge(
    "holdfast_link_certificate_ends_timestamp_seconds",
    "Until when the certificate is good that this region shows to the global cell.",
)
AGENT_LEASE_LEFT = Gauge("holdfast_agent_lease_left_seconds", "What was left of the lease when it was last renewed.")

# The scheduler
SCHEDULER_PLAN = Histogram("holdfast_scheduler_plan_seconds", "Planning one batch.", buckets=_FAST)
SCHEDULER_PLANNED = Counter("holdfast_scheduler_planned_total", "Replicas planned, by outcome.", ["outcome"])
SCHEDULER_ANSWERS = Counter(
    "holdfast_scheduler_answers_total", "The authority's answers to proposals.", ["result", "reason"]
)
SCHEDULER_FAULTS = Counter("holdfast_scheduler_faults_total", "Proposals that got no answer, by fault.", ["reason"])
SCHEDULER_REQUESTS = Gauge("holdfast_scheduler_requests_count", "Requests in the queue, by state.", ["state"])
SCHEDULER_ASSUMED = Gauge("holdfast_scheduler_assumed_count", "Proposals counted as placed, not yet seen as bound.")
SCHEDULER_ASSUMED_EXPIRED = Counter(
    "holdfast_scheduler_assumed_expired_total", "Accepted proposals whose binding was not seen in time."
)

SCHEDULER_SHADOW = Counter(
    "holdfast_scheduler_shadow_total", "Replicas a shadow policy was asked about too, by how its choice compares.",
    ["outcome"],
)  # fmt: skip

# Server
SERVER_REQUESTS = Counter("holdfast_server_requests_total", "Requests answered.", ["verb", "resource", "code"])
SERVER_DURATION = Histogram(
    "holdfast_server_request_seconds", "From the request's headers to its answer; watches excepted.",
    ["verb", "resource"], buckets=_FAST,
)  # fmt: skip
SERVER_RUNNING = Gauge("holdfast_server_running_requests", "Requests being worked on.", ["lane"])
SERVER_REFUSED = Counter("holdfast_server_refused_total", "Requests answered 429.", ["lane"])
SERVER_WATCHES = Gauge("holdfast_server_watches_count", "Watches open.", ["lane"])
SERVER_STALLED = Counter("holdfast_server_stalled_clients_total", "Streams ended as the client stopped reading.")
SERVER_FORWARDED = Counter(
    "holdfast_server_forwarded_total", "Placement calls passed on to the elected authority.", ["verb", "outcome"]
)
SERVER_FAILURES = Counter("holdfast_server_failures_total", "Requests that failed by a fault of the server itself.")

# The fleet, as the global cell sees it
FLEET_REGIONS = Gauge("holdfast_fleet_regions_count", "Regions, by health.", ["state"])
FLEET_RECOVERIES = Gauge("holdfast_fleet_recoveries_count", "Recoveries that are not closed, by phase.", ["phase"])
FLEET_RECOVERY_AGE = Gauge(
    "holdfast_fleet_recovery_age_seconds", "Since the region of the oldest unfinished recovery was last heard."
)
FLEET_UNBACKED = Gauge("holdfast_fleet_unbacked_promises_count", "Recovery promises that some single loss would break.")
FLEET_PLACES = Gauge("holdfast_fleet_recovery_places_count", "Recovery places, by state.", ["state"])
FLEET_OVERRIDES = Gauge("holdfast_fleet_overrides_count", "Overrides that act or await approval, by phase.", ["phase"])
FLEET_NOT_REVERTED = Gauge("holdfast_fleet_overrides_not_reverted_count", "Ended overrides whose effect remains.")
FLEET_FROZEN = Gauge("holdfast_fleet_frozen_grants_count", "Grants of regions out of touch for a whole lease.")
FLEET_OVER_QUOTA = Gauge("holdfast_fleet_tenants_over_quota_count", "Tenants with more in use than their quota.")
FLEET_STUCK = Gauge(
    "holdfast_fleet_stuck_finalizers_count", "Finalizers of global objects that were not removed in their time."
)
FLEET_POLICIES_HELD = Gauge("holdfast_fleet_policies_held_count", "Policies stopped by their own guard.")
FLEET_PENDING_AGE = Gauge("holdfast_fleet_pending_age_seconds", "How long the oldest unserved workload has waited.")
