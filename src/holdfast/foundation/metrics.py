"""All Prometheus metrics, declared once. Counters end in `_total`, units come last, labels have bounded values.

Hot loops call `.labels(…)` once and keep the child. Metrics never influence a decision.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Steps of a replica take up to minutes. The alert about them compares with a minute, so buckets must reach beyond.
_STEP_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

# Runtime: queues, controllers, informers, elections
QUEUE_DEPTH = Gauge("holdfast_queue_depth_keys", "Keys waiting in the controller's queue.", ["controller"])
QUEUE_WAIT = Histogram(
    "holdfast_queue_wait_seconds",
    "Time from queueing a key to the start of its decision.",
    ["controller"],
    buckets=_LATENCY_BUCKETS,
)
QUEUE_RETRIES = Counter("holdfast_queue_retries_total", "Keys requeued with backoff after a failure.", ["controller"])
QUEUE_DROPPED = Counter(
    "holdfast_queue_dropped_total", "Keys dropped by a full queue; a resync adds them again.", ["controller"]
)

CONTROLLER_DECISIONS = Counter("holdfast_controller_decisions_total", "Decisions made.", ["controller"])
CONTROLLER_WRITES = Counter("holdfast_controller_writes_total", "Writes committed.", ["controller"])
CONTROLLER_COMMITS = Counter("holdfast_controller_commits_total", "Transactions committed.", ["controller"])
CONTROLLER_CONFLICTS = Counter(
    "holdfast_controller_conflicts_total", "Commits refused because an object had changed.", ["controller"]
)
CONTROLLER_ERRORS = Counter(
    "holdfast_controller_errors_total", "Decisions that could not be applied, by reason.", ["controller", "reason"]
)
CONTROLLER_DURATION = Histogram(
    "holdfast_controller_pass_seconds",
    "Duration of one pass: deciding and applying.",
    ["controller"],
    buckets=_LATENCY_BUCKETS,
)

INFORMER_OBJECTS = Gauge("holdfast_informer_objects", "Objects in the cache.", ["cell", "kind"])
INFORMER_LISTS = Counter("holdfast_informer_lists_total", "Full lists, by cause.", ["cell", "kind", "cause"])
INFORMER_MISSED_EVENTS = Counter(
    "holdfast_informer_missed_events_total",
    "Changes found by a resync list that the watch did not deliver.",
    ["cell", "kind"],
)
INFORMER_WATCH_ENDS = Counter(
    "holdfast_informer_watch_ends_total", "Watches that ended, by reason.", ["cell", "kind", "reason"]
)

ELECTION_LEADING = Gauge("holdfast_election_leading", "1 while this process leads.", ["election"])
ELECTION_CHANGES = Counter("holdfast_election_changes_total", "Elections won and lost here.", ["election", "change"])

# Access
BREAK_GLASS_SESSIONS = Gauge(
    "holdfast_break_glass_sessions", "Break-glass sessions of the cell: in force, and not reviewed yet.", ["state"]
)

# Notifications
NOTIFICATION_ATTEMPTS = Counter(
    "holdfast_notification_attempts_total",
    "Attempts to deliver a notification, by result. A dropped one is given up after a day; it also counts as failed.",
    ["result"],
)
NOTIFICATIONS_PENDING = Gauge("holdfast_notifications_pending", "Deliveries that are not made yet.")
NOTIFICATIONS_WAITING = Gauge("holdfast_notifications_waiting", "Events that the full queue has no room for.")
NOTIFICATION_OLDEST = Gauge(
    "holdfast_notification_oldest_pending_seconds", "Age of the oldest delivery that is not made yet; 0 if none waits."
)

# Client
CLIENT_CALLS = Histogram(
    "holdfast_client_call_seconds",
    "Duration of HTTP calls to another cell.",
    ["verb", "outcome"],
    buckets=_LATENCY_BUCKETS,
)
CLIENT_RETRIES = Counter("holdfast_client_retries_total", "Reads retried after a fault.", ["verb"])
CLIENT_RETRIES_SUPPRESSED = Counter(
    "holdfast_client_retries_suppressed_total", "Retries skipped because the retry budget was spent.", ["verb"]
)
CLIENT_FAILOVERS = Counter(
    "holdfast_client_failovers_total", "Changes to another server of a cell, because one did not answer.", ["cell"]
)
CLIENT_READ_BACKS = Counter(
    "holdfast_client_read_backs_total", "Commits without a response, by the result of reading back.", ["verdict"]
)

# Store
STORE_COMMITS = Counter("holdfast_store_commits_total", "Commits made durable.")
STORE_KEY_WRITES = Counter("holdfast_store_key_writes_total", "Key changes made durable.")
STORE_CONFLICTS = Counter("holdfast_store_conflicts_total", "Commits refused because a compare failed.")
STORE_GROUP = Histogram(
    "holdfast_store_group_commits", "Commits per group commit.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
)
STORE_COMMIT = Histogram(
    "holdfast_store_commit_seconds", "Duration of one transaction, including the sync.", buckets=_LATENCY_BUCKETS
)
STORE_QUEUE = Gauge("holdfast_store_queue_commits", "Commits waiting to be made durable.")
STORE_FULL = Gauge("holdfast_store_full", "1 while the disk of the store is full and writes are refused.")
STORE_DISK_FREE = Gauge("holdfast_store_disk_free_bytes", "Free space of the file system with the cell's directory.")
STORE_DISK_SIZE = Gauge("holdfast_store_disk_size_bytes", "Size of the file system with the cell's directory.")
STORE_BACKUP = Gauge(
    "holdfast_store_backup_timestamp_seconds", "When the last backup of the cell was made; 0 if there is none."
)
STORE_BACKUP_VERIFIED = Gauge(
    "holdfast_store_backup_verified_timestamp_seconds",
    "When a backup of the cell was last verified by restoring it; 0 if none was.",
)
STORE_BACKUP_FAILED = Gauge("holdfast_store_backup_failed", "1 if the last attempt to back up the cell failed.")
STORE_DAMAGED = Gauge("holdfast_store_damaged", "1 if the last scrub of the store's file found a damaged page.")
STORE_SCRUBBED = Gauge("holdfast_store_scrubbed_timestamp_seconds", "When the last scrub of the store's file ended.")
STORE_DAMAGED_READS = Counter(
    "holdfast_store_damaged_reads_total", "Reads refused because a page of the store's file is damaged."
)
STORE_COMPACTED = Gauge("holdfast_store_compacted_revision", "Oldest revision in the history.")
STORE_WATCHERS = Gauge("holdfast_store_watchers", "Open watch streams.", ["kind"])
STORE_WATCHERS_EXPIRED = Counter(
    "holdfast_store_watchers_expired_total", "Watch streams closed because they fell behind.", ["kind"]
)

# Gate
GATE_COMMITS = Counter("holdfast_gate_commits_total", "Commit requests to the gate, by result.", ["result"])
GATE_JOINS = Counter("holdfast_gate_joins_total", "Node join requests, by result.", ["result"])
GATE_RETRIES = Counter("holdfast_gate_retries_total", "Commits retried because of a concurrent write.")

# The authority of a region
AUTHORITY_RESPONSES = Counter(
    "holdfast_authority_responses_total", "Responses to placement requests.", ["verb", "result", "reason"]
)
AUTHORITY_CONFLICTS = Counter("holdfast_authority_conflicts_total", "Commits refused because an object had changed.")
AUTHORITY_READ_BACKS = Counter(
    "holdfast_authority_read_backs_total", "Commits without a response, by the result of reading back.", ["verdict"]
)
AUTHORITY_COMMIT = Histogram(
    "holdfast_authority_commit_seconds",
    "Time from the first check of a batch to its durable response.",
    ["verb"],
    buckets=_LATENCY_BUCKETS,
)
AUTHORITY_LEASES = Gauge("holdfast_authority_leases", "Live node leases.")
AUTHORITY_FENCES = Counter("holdfast_authority_fences_total", "Node epochs fenced.")
AUTHORITY_CLAIMS = Gauge("holdfast_authority_claims", "Claims in the ledger, by state.", ["state"])
EVENTS_DROPPED = Counter("holdfast_gate_events_dropped_total", "Events that could not be stored.")

# The node agent
AGENT_HELD_TASKS = Gauge(
    "holdfast_agent_held_tasks", "Running tasks whose Binding is missing in the region without a deletion."
)
AGENT_TASKS = Gauge("holdfast_agent_tasks", "Tasks on this node that run, start or stop.")
AGENT_START = Histogram(
    "holdfast_agent_start_seconds", "Time from the decision to start a task until it runs.", buckets=_LATENCY_BUCKETS
)
AGENT_EXITS = Counter("holdfast_agent_exits_total", "Task exits, by reason.", ["reason"])
AGENT_REPORTS = Counter("holdfast_agent_reports_total", "Status writes, by result.", ["result"])
AGENT_CERTIFICATE_REMAINING = Gauge(
    "holdfast_agent_certificate_remaining_seconds", "Remaining validity of the agent's certificate."
)
REGION_HELD_WORKLOADS = Gauge(
    "holdfast_region_held_workloads",
    "Workloads that the region keeps although the global cell does not contain them or removes too many at once.",
    ["reason"],
)
LINK_CERTIFICATE_EXPIRY = Gauge(
    "holdfast_link_certificate_expiry_timestamp_seconds",
    "Expiry of the region's client certificate for the global cell.",
)
AGENT_LEASE_REMAINING = Gauge("holdfast_agent_lease_remaining_seconds", "Remaining lease time at the last renewal.")

# The shims of a node, in sum
SHIM_PROCESSES = Gauge("holdfast_shim_processes", "Shims that run on this node.")
SHIM_RESIDENT = Gauge("holdfast_shim_resident_bytes", "Resident memory of the shims, without their tasks.")
SHIM_CPU = Counter("holdfast_shim_cpu_seconds_total", "CPU time of the shims, without their tasks.")
SHIM_DEATHS = Counter("holdfast_shim_deaths_total", "Shims that ended without a record of their task's exit.")
SHIM_LOST_OUTPUT = Counter(
    "holdfast_shim_lost_output_bytes_total",
    "Output of ended tasks that their shims could not write, as on a full disk.",
)

# The scheduler
SCHEDULER_PLAN = Histogram(
    "holdfast_scheduler_plan_seconds", "Duration of planning one batch.", buckets=_LATENCY_BUCKETS
)
SCHEDULER_PLANNED = Counter("holdfast_scheduler_planned_total", "Replicas planned, by outcome.", ["outcome"])
SCHEDULER_RESPONSES = Counter(
    "holdfast_scheduler_responses_total", "Responses of the authority to proposals.", ["result", "reason"]
)
SCHEDULER_UNANSWERED = Counter(
    "holdfast_scheduler_unanswered_proposals_total", "Proposals without a response, by fault.", ["reason"]
)
SCHEDULER_REQUESTS = Gauge("holdfast_scheduler_requests", "Requests in the queue, by state.", ["state"])
SCHEDULER_ASSUMED = Gauge(
    "holdfast_scheduler_assumed_placements", "Proposals counted as placed whose claim is not observed yet."
)
SCHEDULER_ASSUMED_EXPIRED = Counter(
    "holdfast_scheduler_assumed_expired_total", "Accepted proposals whose claim was not observed in time."
)

SCHEDULER_SHADOW = Counter(
    "holdfast_scheduler_shadow_total", "Replicas also planned with the shadow policy, by comparison.", ["outcome"]
)

# Traces
TRACE_SPANS = Counter(
    "holdfast_trace_spans_total",
    "Finished spans: exported, dropped by a full queue, or failed because the receiver did not accept them.",
    ["outcome"],
)

# Server
SERVER_REQUESTS = Counter(
    "holdfast_server_requests_total", "HTTP requests, by response code.", ["verb", "resource", "code"]
)
SERVER_DURATION = Histogram(
    "holdfast_server_request_seconds",
    "Duration of requests, without watches.",
    ["verb", "resource"],
    buckets=_LATENCY_BUCKETS,
)
SERVER_RUNNING = Gauge("holdfast_server_running_requests", "Requests in progress.", ["lane"])
SERVER_REFUSED = Counter("holdfast_server_refused_total", "Requests refused with 429.", ["lane"])
SERVER_WATCHES = Gauge("holdfast_server_watches", "Open watches.", ["lane"])
SERVER_STALLED = Counter("holdfast_server_stalled_clients_total", "Streams closed because the client stopped reading.")
SERVER_FORWARDED = Counter(
    "holdfast_server_forwarded_total", "Placement calls forwarded to the elected authority.", ["verb", "outcome"]
)
SERVER_CERTIFICATE_EXPIRY = Gauge(
    "holdfast_server_certificate_expiry_timestamp_seconds", "Expiry of the certificate that the cell's API presents."
)
SERVER_FAILURES = Counter("holdfast_server_failures_total", "Requests that failed with an internal server error.")

# The fleet, from the global cell
FLEET_REGIONS = Gauge(
    "holdfast_fleet_regions", "Regions, by health. PlannedAbsence: not healthy, in planned maintenance.", ["state"]
)
FLEET_CONTACT_AGE = Gauge(
    "holdfast_fleet_region_contact_age_seconds", "Time since the region's last report, by region.", ["region"]
)
FLEET_RECOVERIES = Gauge("holdfast_fleet_recoveries", "Open recoveries, by phase.", ["phase"])
FLEET_RECOVERY_AGE = Gauge(
    "holdfast_fleet_recovery_age_seconds", "Time since the last report of the region of the oldest open recovery."
)
FLEET_UNBACKED = Gauge("holdfast_fleet_unbacked_objectives", "Recovery objectives that some single loss would break.")
FLEET_RECOVERY_SLOTS = Gauge(
    "holdfast_fleet_recovery_slots", "Recovery slots, by region and state.", ["region", "state"]
)
FLEET_OVERRIDES = Gauge("holdfast_fleet_overrides", "Overrides that are active or await approval, by phase.", ["phase"])
FLEET_NOT_REVERTED = Gauge("holdfast_fleet_overrides_not_reverted", "Ended overrides whose effect is not reverted yet.")
FLEET_EXPIRED_GRANT_LEASES = Gauge(
    "holdfast_fleet_expired_grant_leases", "Grants whose lease expired because the region is out of contact."
)
FLEET_OVER_QUOTA = Gauge("holdfast_fleet_tenants_over_quota", "Tenants whose usage exceeds their quota.")
FLEET_STUCK_FINALIZERS = Gauge("holdfast_fleet_stuck_finalizers", "Finalizers of global objects past their deadline.")
FLEET_POLICIES_STOPPED = Gauge("holdfast_fleet_policies_stopped", "Policies stopped by their guard.")
FLEET_PENDING_AGE = Gauge("holdfast_fleet_pending_age_seconds", "Age of the oldest workload that does not serve fully.")

# Replicas of a region, by stage
REGION_REPLICAS = Gauge("holdfast_region_replicas", "Replicas in the region, by stage.", ["stage"])
REGION_QUEUE_AGE = Gauge(
    "holdfast_region_queue_age_seconds",
    "Time since the oldest queued replica was created, or released by its last node.",
)
REGION_REPAIRS = Gauge(
    "holdfast_region_repairs", "Replicas that repair has found stuck, by the state of the repair.", ["state"]
)
REGION_STEP = Histogram(
    "holdfast_region_step_seconds",
    "Time of each step of a replica that begins to serve: scheduling, binding, startup, readiness, serving.",
    ["step"],
    buckets=_STEP_BUCKETS,
)

# Entry proxy
PROXY_RELOADS = Counter(
    "holdfast_proxy_reloads_total",
    "Configurations that the proxy was given: applied, invalid (not written, or refused by its check) or failed.",
    ["result"],
)
PROXY_STARTS = Counter("holdfast_proxy_starts_total", "Starts of the proxy process, restarts after a crash included.")
PROXY_RUNNING = Gauge("holdfast_proxy_running", "1 while the proxy process runs.")
PROXY_BACKENDS = Gauge("holdfast_proxy_backends", "Hostnames and TCP ports that the proxy serves.")
PROXY_SERVERS = Gauge("holdfast_proxy_servers", "Replicas that receive requests; a replica counts once per backend.")
PROXY_OMITTED = Gauge(
    "holdfast_proxy_omitted",
    "Left out of the configuration: backends over the limit, addresses that are not allowed.",
    ["what"],
)
PROXY_LAST_CONTACT = Gauge(
    "holdfast_proxy_last_contact_timestamp_seconds",
    "When a cell last told the proxy about serving addresses or regions. Before the first answer it is 0.",
)
PROXY_UPDATE_DURATION = Histogram(
    "holdfast_proxy_update_seconds",
    "Time from a change of the serving addresses to the reload of the proxy.",
    buckets=_LATENCY_BUCKETS,
)
