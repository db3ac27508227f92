"""Every reason that conditions, events and refusals give, each with one sentence that explains it.

Reasons are stable: operators alert on them and controllers act on them. `docs/reasons.md` is generated from this table.
"""

from __future__ import annotations

import enum

from holdfast.model import volume_reasons as texts


class Reason(enum.StrEnum):
    """A reason as written in conditions, events, refusals, pending counts and metric labels."""

    def __new__(cls, value: str, says: str) -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = says
        return member

    sentence: str

    # Placement refusals, by the planner and the authority
    REPLICA_NOT_FOUND = (
        "ReplicaNotFound",
        "The replica does not exist, or was recreated with another uid. Discard the proposal.",
    )
    REPLICA_TERMINATING = "ReplicaTerminating", "The replica is being deleted and is not scheduled again."
    REPLICA_ENDED = "ReplicaEnded", "The batch replica has succeeded or failed and is not scheduled again."
    STALE_ATTEMPT = (
        "StaleAttempt",
        "The proposal is for an attempt that was already released. Plan again for the current attempt.",
    )
    TEMPLATE_CHANGED = "TemplateChanged", "The proposal was made for another template of the replica. Plan again."
    INTENT_MISMATCH = (
        "IntentMismatch",
        "The same intent was committed earlier with different content. The stored one is valid.",
    )
    ALREADY_CLAIMED = "AlreadyClaimed", "The replica already has a claim; the details name it."
    NODE_NOT_FOUND = "NodeNotFound", "The node does not exist in this region."
    VOLUME_ON_OTHER_NODE = texts.VOLUME_ON_OTHER_NODE
    VOLUME_NODE_LOST = texts.VOLUME_NODE_LOST
    VOLUME_TERMINATING = texts.VOLUME_TERMINATING
    VOLUME_IN_USE = texts.VOLUME_IN_USE
    VOLUME_NOT_BOUND = texts.VOLUME_NOT_BOUND
    INSUFFICIENT_STORAGE = texts.INSUFFICIENT_STORAGE
    VOLUME_CLAIM_NOT_FOUND = texts.VOLUME_CLAIM_NOT_FOUND
    VOLUME_CLAIM_IN_USE = texts.VOLUME_CLAIM_IN_USE
    VOLUME_CLAIM_UNUSED = texts.VOLUME_CLAIM_UNUSED
    VOLUME_CLAIM_DATA_REMAINS = texts.VOLUME_CLAIM_DATA_REMAINS
    VOLUME_CLAIM_MISSING = texts.VOLUME_CLAIM_MISSING
    VOLUME_CLAIM_FOUND = texts.VOLUME_CLAIM_FOUND
    NODE_UNREACHABLE = (
        "NodeUnreachable",
        "The node's lease has expired. Wait for its agent to renew it, or choose another node.",
    )
    NODE_CORDONED = "NodeCordoned", "An operator marked the node as unschedulable."
    NODE_DRAINING = "NodeDraining", "The node is being drained."
    NODE_TERMINATING = "NodeTerminating", "The node is being deleted."
    NODE_FENCED = "NodeFenced", "The node was fenced and has not registered again."
    NODE_RECONCILING = (
        "NodeReconciling",
        "The node reconnected and has not yet compared its running tasks with its Bindings.",
    )
    NODE_QUARANTINED = (
        "NodeQuarantined",
        "Starts of several workloads failed on the node. It gets no new work until the quarantine ends.",
    )
    NODE_EXCLUDED_BY_OVERRIDE = "NodeExcludedByOverride", "An Override forbids new work in the node's zone or region."
    DRIVER_MISSING = "DriverMissing", "The node does not have the driver that the template requires."
    INSUFFICIENT_CPU = "InsufficientCpu", "The node does not have enough free CPU."
    INSUFFICIENT_MEMORY = "InsufficientMemory", "The node does not have enough free memory."
    INSUFFICIENT_RESOURCE = "InsufficientResource", "The node does not have enough of a resource; the details name it."
    DEVICE_IN_USE = "DeviceInUse", "The device is in use; the details name the claim that holds it."
    INSUFFICIENT_DEVICES = (
        "InsufficientDevices",
        "The node does not have enough free devices of the requested kind and model.",
    )
    PORT_IN_USE = "PortInUse", "A port that the replica needs is in use on the node."
    ASSIGNED_PORT_IN_USE = texts.ASSIGNED_PORT_IN_USE
    PORTS_EXHAUSTED = "PortsExhausted", "The node has no free port in its port range."
    NO_GRANT = "NoGrant", "The tenant has no grant in this region. An operator creates or raises its Quota."
    QUOTA_EXCEEDED = "QuotaExceeded", "The request would exceed the tenant's limit in this region."
    GRANT_EXPIRED = (
        "GrantExpired",
        "The region has lost contact with the global cell, and the lease of the grant has expired.",
    )
    NOT_ALLOWED_WHILE_PARTITIONED = (
        "NotAllowedWhilePartitioned",
        "The region is partitioned and may place only provisional work. The message says why this replica does not "
        "qualify; it stays pending.",
    )
    RESIDENCY_VIOLATED = "ResidencyViolated", "The workload's placement rules forbid this region, zone or pool."
    TENANCY_VIOLATED = (
        "TenancyViolated",
        "Dedicated nodes accept only their own tenant, and a dedicated tenant uses only its own nodes.",
    )
    RESERVATION_EXPIRED = "ReservationExpired", "The reservation expired before it was bound. Reserve again."
    RESERVATION_MISSING = "ReservationMissing", "There is no reservation for this intent. Reserve first."
    GANG_INCOMPLETE = "GangIncomplete", "Not enough members of the gang can be placed together."
    STOP_NOT_CONFIRMED = (
        "StopNotConfirmed",
        "The claim cannot be released yet: the node has neither acknowledged the stop nor been fenced.",
    )
    NOT_LEADER = "NotLeader", "This server is not the elected authority of the region at the moment."

    # Refusals by placement rules, and preemption
    ZONE_NOT_ALLOWED = "ZoneNotAllowed", "The workload's placement does not allow the node's zone."
    POOL_NOT_ALLOWED = "PoolNotAllowed", "The workload's placement does not allow the node's pool."
    LABELS_DO_NOT_MATCH = (
        "LabelsDoNotMatch",
        "The node's labels do not match the workload's node selector or an expression.",
    )
    TAINT_NOT_TOLERATED = "TaintNotTolerated", "The node has a taint that the workload does not tolerate."
    SPREAD_VIOLATED = "SpreadViolated", "The node would exceed the allowed skew between zones or nodes."
    AFFINITY_NOT_MET = (
        "AffinityNotMet",
        "An affinity rule requires a matching replica in the same zone or node, and there is none.",
    )
    ANTI_AFFINITY_VIOLATED = (
        "AntiAffinityViolated",
        "An anti-affinity rule forbids the node: a matching replica is in the same zone or node.",
    )
    NO_NODES = "NoNodes", "The region has no nodes."

    EXPRESSION_REFUSED = "ExpressionRefused", "A filter expression of the active policy rejects the node."
    NO_VICTIMS = (
        "NoVictims",
        "Preemption cannot help: evicting the lower-priority work that may be evicted would not free enough room.",
    )
    VICTIMS_WITHIN_BUDGET = (
        "VictimsWithinBudget",
        "Preemption could help, but disruption budgets keep the lower-priority replicas that would have to leave.",
    )
    TOO_MANY_VICTIMS = (
        "TooManyVictims",
        "Preemption could help, but on every node it needs more victims than one replica may have.",
    )
    PREEMPTION_BUDGET_SPENT = (
        "PreemptionBudgetSpent",
        "The tenant has caused as many evictions in the last minute as the policy allows.",
    )
    WAITING_FOR_VICTIMS = (
        "WaitingForVictims",
        "A node is reserved for the replica. It is bound when its preemption victims have stopped.",
    )
    VICTIM_NOT_ALLOWED = (
        "VictimNotAllowed",
        "A nominated victim does not exist, has the same or a higher priority, or is already evicted for another "
        "replica.",
    )
    WAITING_FOR_GANG = (
        "WaitingForGang",
        "A node is reserved for the replica. It is bound when enough members of the gang have a node.",
    )
    DEADLINE_AT_RISK = (
        "DeadlineAtRisk",
        "Most of the time until the deadline has passed, and replicas are still pending.",
    )
    DEADLINE_MISSED = "DeadlineMissed", "The deadline passed while replicas were still pending."

    # Assignment
    NO_REGION_ALLOWED = "NoRegionAllowed", "No region satisfies the workload's placement rules."
    REGION_NOT_HEALTHY = "RegionNotHealthy", "The regions that the placement rules allow are not healthy at the moment."
    ASSIGNED = "Assigned", "Every replica is assigned to a region."
    PARTLY_ASSIGNED = "PartlyAssigned", "Some replicas are not assigned to a region yet."
    SPILLED_OVER = (
        "SpilledOver",
        "Replicas that were pending in a full region were assigned to another region that has room.",
    )

    # Workload conditions
    ALL_SERVING = "AllServing", "All desired replicas serve."
    UPDATE_PENDING = (
        "UpdatePending",
        "Enough replicas serve, but some of them are old or in a region that the workload leaves.",
    )
    SOME_SERVING = "SomeServing", "Fewer replicas serve than desired."
    NONE_SERVING = "NoneServing", "No replica serves."
    COMPLETE = "Complete", "All completions succeeded."
    IN_PROGRESS = "InProgress", "The batch is running."
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded", "More replicas of the batch failed than its backoffLimit allows."
    FAILED_INDEXES = "FailedIndexes", "Indexes of the job array failed more often than backoffLimitPerIndex allows."
    ACTIVE_DEADLINE_EXCEEDED = (
        "ActiveDeadlineExceeded",
        "The batch did not end within its activeDeadlineSeconds; its replicas were stopped.",
    )
    ON_TIME = "OnTime", "The batch is expected to complete before its deadline."
    SCHEDULE_ACTIVE = "ScheduleActive", "The CronWorkload runs at the times of its schedule."
    SCHEDULE_SUSPENDED = "ScheduleSuspended", "The CronWorkload is suspended: it starts no run."
    SCHEDULE_UNUSABLE = "ScheduleUnusable", "This release cannot read the schedule; no run is started."
    UNKNOWN_TIME_ZONE = "UnknownTimeZone", "This release has no rules for the time zone; no run is started."
    CLOCK_BEHIND = (
        "ClockBehind",
        "The clock of the global cell stepped back. Ticks that were decided before do not run again.",
    )
    TICK_WAITING = "TickWaiting", "A run is due and waits; the message says for what."
    TICK_MISSED = "TickMissed", "A tick of the schedule has no run; the message says why."
    RUN_STARTED = "RunStarted", "The run of a tick was created."
    ROLLOUT_PROGRESSING = "RolloutProgressing", "A new revision is being rolled out."
    ROLLOUT_PAUSED = "RolloutPaused", "The rollout is paused until it is resumed."
    ROLLOUT_COMPLETE = "RolloutComplete", "Every region runs the new revision."
    ROLLING_BACK = (
        "RollingBack",
        "The rollout made no progress within its deadline; the last good revision is being restored.",
    )
    ROLLED_BACK = "RolledBack", "The last good revision runs again. Change the template to try another rollout."
    ROLLOUT_FAILED = "RolloutFailed", "The rollout made no progress within its deadline and was not rolled back."
    RESOURCE_LIMITS_ENFORCED = (
        "ResourceLimitsEnforced",
        "Control groups enforce the resource limits of tasks on the node.",
    )
    RESOURCE_LIMITS_PARTIAL = (
        "ResourceLimitsPartial",
        "The node has no control groups; the message says which limits are not enforced.",
    )
    TASKS_ISOLATED = "TasksIsolated", "Each task on the node has a user, temporary files and a view of its own."
    TASKS_NOT_ISOLATED = (
        "TasksNotIsolated",
        "Tasks on the node share more than they should; the message says what, and why.",
    )
    END_UNCONFIRMED = (
        "EndUnconfirmed",
        "A shim was killed and the node cannot tell whether processes of its exclusive task are left; the task counts "
        "as running.",
    )

    # Execution, from the agent
    STARTED = "Started", "The process was started."
    BECAME_READY = "BecameReady", "The probes passed."
    INITIALIZING = (
        "Initializing",
        "An init task runs, or a sidecar is not ready yet. The message names it; the main task starts afterwards.",
    )
    INIT_TASK_FAILED = "InitTaskFailed", "An init task failed, so the main task did not start. The message names it."
    POST_START_FAILED = "PostStartFailed", "The `postStart` hook failed, so the main task was stopped."
    NETWORK_FAILED = "NetworkFailed", "The task's own network could not be made, or lost its connection to the node."
    VOLUME_FULL = "VolumeFull", "The task wrote more than the size of a volume, so it was stopped."
    VOLUME_DATA_MISSING = texts.VOLUME_DATA_MISSING
    VOLUME_UNAVAILABLE = texts.VOLUME_UNAVAILABLE
    HOST_PATH_NOT_ALLOWED = texts.HOST_PATH_NOT_ALLOWED
    FETCHING_ARTIFACTS = "FetchingArtifacts", "The agent fetches the artifacts of the task; the task starts afterwards."
    IMAGE_PULLING = "ImagePulling", "The agent pulls the image of the task; the task starts afterwards."
    BECAME_UNREADY = "BecameUnready", "The readiness probe failed."
    STARTUP_FAILED = "StartupFailed", "The startup probe did not pass in time; the process was stopped."
    LIVENESS_FAILED = "LivenessFailed", "The liveness probe failed; the process was restarted."
    EXITED = "Exited", "The process exited."
    KILLED = "Killed", "The process was terminated by a signal."
    OUT_OF_MEMORY = "OutOfMemory", "The process exceeded its memory limit."
    COMMAND_NOT_FOUND = "CommandNotFound", "The command does not exist on the node or is not executable."
    TEMPLATE_UNUSABLE = (
        "TemplateUnusable",
        "The node cannot use the template's working directory, user, bundle or command.",
    )
    START_ERROR = "StartError", "The process could not be started; the message has the operating system's error."
    USER_NOT_ALLOWED = (
        "UserNotAllowed",
        "The template names a user that the node or the tenant does not allow. Without `user` each task has its own.",
    )
    ARTIFACT_MISSING = "ArtifactMissing", "An artifact could not be fetched, or its source is not allowed on the node."
    ARTIFACT_MISMATCH = texts.ARTIFACT_MISMATCH
    IMAGE_PULL_FAILED = texts.IMAGE_PULL_FAILED
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff", "Earlier pulls of the image failed; the next one waits for the backoff."
    IMAGE_NOT_FOUND = "ImageNotFound", "The registry has no image of this name, tag or digest for this platform."
    IMAGE_UNUSABLE = texts.IMAGE_UNUSABLE
    IMAGE_TOO_LARGE = "ImageTooLarge", "The image exceeds the node's limit on bytes, files or layers."
    REGISTRY_DENIED = texts.REGISTRY_DENIED
    IMAGE_NEVER_PULLED = ("ImageNeverPulled", "The pull policy is Never and the node does not have the image.")
    IMAGE_UNRESOLVED = texts.IMAGE_UNRESOLVED
    IMAGE_RESOLVED = "ImageResolved", "The tag of the image was resolved to the digest that all replicas run."
    SECRET_MISSING = "SecretMissing", "The template refers to a Secret or to a key of one that does not exist."
    CONFIG_MISSING = "ConfigMissing", "The template refers to a ConfigMap or to a key of one that does not exist."
    CONFIG_UNUSABLE = "ConfigUnusable", "A referenced value is too large for a process, or contains NUL."
    CONFIG_UNREACHABLE = texts.CONFIG_UNREACHABLE
    TOO_MANY_PROCESSES = "TooManyProcesses", "The task reached its limit on processes."
    DISK_FULL = "DiskFull", "The node has no disk space to start the task. Free some, or raise the disk quota."
    BACKING_OFF = "BackingOff", "The process keeps exiting; the next restart waits for the backoff."
    NEVER_STARTED = "NeverStarted", "The replica was withdrawn before its process was started."
    STOPPED_ON_REQUEST = "StoppedOnRequest", "The process was stopped on request."

    # Node contact, release, traffic
    LEASE_EXPIRED = "LeaseExpired", "The node's lease was not renewed in time."
    RENEWAL_LATE = "RenewalLate", "The node's agent has missed a renewal of its lease. Nothing else has happened yet."
    LEASE_RENEWED = "LeaseRenewed", "The node's agent renews its lease again."
    NODE_LOST = "NodeLost", "The node was fenced; the replica is scheduled on another node."
    SCALED_DOWN = "ScaledDown", "The number of desired replicas was reduced."
    REVISION_REPLACED = "RevisionReplaced", "The replica runs an older revision and is replaced."
    OWNER_DELETED = "OwnerDeleted", "The workload or the assignment is being deleted."
    DELETED = "Deleted", "The replica itself was deleted."
    DRAINED = "Drained", "The replica left because its node is being drained."
    REBALANCED = "Rebalanced", "The replica left so that its workload is spread more evenly over zones or nodes."
    EVICTED_BY_TAINT = "EvictedByTaint", "The replica left because it does not tolerate a NoExecute taint of its node."
    BUDGET_EXHAUSTED = "BudgetExhausted", "The workload's disruption budget allows no further unavailable replica."
    DRAIN_OVERDUE = (
        "DrainOverdue",
        "The drain did not finish in time; the message names the blocking replica and the cause.",
    )
    PREEMPTED = "Preempted", "A workload with a higher priority needed the node's resources."
    FINISHED = "Finished", "The work ended; its claims are released."
    PROVISIONAL_EXPIRED = (
        "ProvisionalExpired",
        "Work that was placed while the region was partitioned reached its time limit without confirmation by a grant.",
    )
    PROVISIONAL_WITHDRAWN = (
        "ProvisionalWithdrawn",
        "The region is connected again, and its grant does not cover the work that was placed while it was "
        "partitioned.",
    )
    CLAIM_LOST = (
        "ClaimLost",
        "The store lost the replica's Binding or Reservation. Its task is stopped, and the replica is placed again.",
    )
    NODE_REJOINED_WITHOUT_TASK = "NodeRejoinedWithoutTask", "The node reconnected without the replica's task."
    ADDED_TO_ENDPOINT = "AddedToEndpoint", "The replica receives traffic."
    WITHDRAWN_FROM_ENDPOINT = "WithdrawnFromEndpoint", "The replica receives no more traffic."

    # Queueing, quota, regions
    REPLICA_CREATED = "ReplicaCreated", "A replica was created and queued."
    UNSCHEDULABLE = "Unschedulable", "No node fits at the moment; the message counts the reasons."
    ALL_PLACED = "AllPlaced", "Every replica of the decision was placed."
    RESERVED = "Reserved", "Capacity is held for the replica, which is not bound yet."
    BOUND = "Bound", "The replica is bound to a node."
    WAITING = "Waiting", "The replica is pending; the message says why, and when it is retried."
    GRANTED = "Granted", "Every region has acknowledged its grant."
    SHRINK_PENDING = "ShrinkPending", "A region has not yet acknowledged a lower limit."
    GRANT_LEASE_EXPIRED = (
        "GrantLeaseExpired",
        "A region has been out of contact for longer than the grant lease. Its grant still counts in full and is "
        "not spent.",
    )
    OVER_QUOTA = (
        "OverQuota",
        "More is in use than the quota allows, for example after an emergency quota ended. The excess is drained.",
    )
    WITHIN_QUOTA = "WithinQuota", "Usage is within the quota."
    FENCED = "Fenced", "The node's lease epoch was fenced."
    PUBLISHED = "Published", "The policy has an immutable revision that regions can use."
    REPORTING = "Reporting", "The region reports on time."
    NOT_REPORTING = "NotReporting", "The region has stopped reporting."
    GLOBAL_CELL_ISOLATED = (
        "GlobalCellIsolated",
        "No region reports at all. The global cell may be the isolated side, so no region is declared lost.",
    )
    NO_WITNESS = (
        "NoWitness",
        "The region does not report, and no other region reports probes of it. Only an Override can declare it lost.",
    )
    TOO_FEW_WITNESSES = (
        "TooFewWitnesses",
        "The region does not report. Some regions cannot reach it, but not most of the regions that report.",
    )
    WITNESS_DISAGREES = (
        "WitnessDisagrees",
        "The region does not report to the global cell, but at least one other region still reaches it.",
    )
    UNREACHABLE_CONFIRMED = (
        "UnreachableConfirmed",
        "The region does not report, and most reporting regions cannot reach it.",
    )
    REGION_LOST = "RegionLost", "The region is lost; its last report about its replicas no longer counts."
    DECLARED_LOST = "DeclaredLost", "An Override declares the region lost."
    CAPACITY_LOST = (
        "CapacityLost",
        "The region reports less live capacity than its assigned work needs, or a zone without live nodes.",
    )
    CAPACITY_PRESENT = "CapacityPresent", "The region or node has the capacity for its assigned work."

    # Recovery
    RECOVERY_OPENED = (
        "RecoveryOpened",
        "Recovery from the loss of a region has begun; the deadline counts from the region's last report.",
    )
    RECOVERING = "Recovering", "Replicas are starting in the target region."
    RECOVERED = "Recovered", "Every critical workload serves in a healthy region again."
    FAILING_BACK = (
        "FailingBack",
        "The region is healthy again; recovery replicas are removed as the ordinary replicas serve.",
    )
    RECOVERY_CLOSED = "RecoveryClosed", "Everything that the recovery borrowed was returned."
    WAITING_FOR_START_RATE = (
        "WaitingForStartRate",
        "Recovery starts are rate limited, and workloads with a higher priority go first.",
    )
    NO_TARGET = (
        "NoTarget",
        "No healthy region is allowed to run the workload. It stays below minServing until there is one.",
    )
    TARGET_STALLED = (
        "TargetStalled",
        "The target region accepted the workload and made no progress within the allowed time.",
    )
    OBJECTIVE_MISSED = "ObjectiveMissed", "The recovery took longer than the workload's deadlineSeconds."
    REGION_RETURNED = (
        "RegionReturned",
        "The lost region was healthy again before the deadline, and some workload did not serve elsewhere by then.",
    )
    SLOT_ADMITTED = "SlotAdmitted", "The authority admitted the recovery slot on its node."
    SLOTS_ADMITTED = "SlotsAdmitted", "Every recovery slot of the budget is admitted."
    SLOTS_UNSCHEDULABLE = "SlotsUnschedulable", "Some recovery slots of the budget fit on no node at the moment."
    BACKED = "Backed", "The recovery objective holds for the loss of any one region or zone."
    NOT_BACKED = (
        "NotBacked",
        "Recovery slots and allowances do not cover the recovery objective; the message names the bottleneck.",
    )

    PROMOTED = "Promoted", "Every region that should use the policy revision uses it."
    POLICY_ROLLOUT_STALLED = (
        "PolicyRolloutStalled",
        "A region does not use the new policy revision yet; it keeps its previous one.",
    )
    ANOTHER_POLICY_ACTIVE = (
        "AnotherPolicyActive",
        "Another SchedulerPolicy decides. At most one policy of a platform may be in a stage other than Draft.",
    )
    GUARD_BREACHED = (
        "GuardBreached",
        "The policy revision violated its guard and was stopped. Change the policy to try again.",
    )
    WITHIN_GUARD = "WithinGuard", "The policy revision meets its guard, or has none."
    POLICY_INACTIVE = "PolicyInactive", "The policy is a draft or a shadow and decides nothing."

    STAGE_DEADLINE_EXCEEDED = (
        "StageDeadlineExceeded",
        "The replica stayed in a stage longer than the stage's deadline. Repair reports it, or asks for another node.",
    )
    FINALIZER_STUCK = "FinalizerStuck", "A finalizer was not removed in time; the message names it and its owner."
    RESCHEDULED_BY_REPAIR = "RescheduledByRepair", "The replica was moved from a node where it did not start."

    # Autoscaling
    SCALED_BY_LOAD = "ScaledByLoad", "The number of replicas was changed to follow the load."
    LOAD_WITHIN_TARGET = "LoadWithinTarget", "The load is near its target; the number of replicas stays."
    LOAD_UNKNOWN = "LoadUnknown", "No load was pushed, or the last one is too old. The number of replicas stays."
    SCALE_UP_BLOCKED = (
        "ScaleUpBlocked",
        "More replicas would not help: existing ones are pending or not ready; the message says why.",
    )
    SCALE_LIMITED = "ScaleLimited", "The load calls for a number of replicas that the scaling limits do not allow yet."
    AUTOSCALER_PAUSED = "AutoscalerPaused", "An Override keeps the number of replicas unchanged."

    POOL_STABLE = "PoolStable", "The pool has the nodes it needs."
    POOL_GROWING = "PoolGrowing", "Replicas or recovery slots are pending for lack of room; new nodes are starting."
    POOL_SHRINKING = "PoolShrinking", "A node that was idle for the pool's idleSeconds is being removed."
    POOL_AT_MAX_NODES = (
        "PoolAtMaxNodes",
        "Replicas or recovery slots are pending for lack of room, and the pool has reached maxNodes.",
    )

    # Overrides
    APPROVAL_NEEDED = "ApprovalNeeded", "The Override takes effect after a second person has approved it."
    OVERRIDE_ACTIVE = "OverrideActive", "The Override is in force until it expires."
    OVERRIDE_EXPIRED = "OverrideExpired", "The Override has expired and has no effect."
    OVERRIDE_TIME_UNKNOWN = (
        "OverrideTimeUnknown",
        "A restart of the region lost the remaining time of the Override. A permissive Override has no effect in "
        "the region until the global cell is in contact again.",
    )
    OVERRIDE_REVOKED = "OverrideRevoked", "The Override was revoked and has no effect."
    MAINTENANCE_PLANNED = (
        "MaintenancePlanned",
        "The window is planned, announced, suspended or over; its phase says which.",
    )
    MAINTENANCE_ACTIVE = "MaintenanceActive", "Planned maintenance goes on: no new work is placed there."
    MAINTENANCE_ENDED = "MaintenanceEnded", "The maintenance is over, and the node takes work again."
    OVERRIDE_REVERTED = "OverrideReverted", "The Override has ended, and a check found none of its effect left."
    OVERRIDE_REVERT_PENDING = (
        "OverrideRevertPending",
        "The Override has ended, and its effect is still being removed; the message says where.",
    )

    RESTORE_IN_PROGRESS = (
        "RestoreInProgress",
        "The cell was restored from a backup. A region binds nothing until each of its agents has reported or is "
        "fenced; the global cell raises no grant until every region has reported what it holds.",
    )

    DELETION_NOT_ORDERED = (
        "DeletionNotOrdered",
        "An Assignment of this region is missing from the global cell, or older there, and no deletion was ordered. "
        "The region keeps the work until the records return or an Override of kind ConfirmDeletion is in force.",
    )
    MASS_DELETION_PAUSED = (
        "MassDeletionPaused",
        "More than half of the region's workloads were to be removed within a few minutes. The region removes no more "
        "of them until an Override of kind ConfirmDeletion is in force.",
    )
    GLOBAL_CELL_REPLACED = (
        "GlobalCellReplaced",
        "The global cell is not the one that the region has followed: another identity or era, or without a record of "
        "the region. The region keeps everything and exchanges nothing with it.",
    )
    REGION_CELL_REPLACED = (
        "RegionCellReplaced",
        "The region's store is not the one that the global cell knows. The region exchanges nothing with the global "
        "cell until it is restored, or an Override of kind ConfirmDeletion accepts the new store.",
    )
    NOTHING_HELD = "NothingHeld", "The region follows the global cell and holds no work on its own."

    OVERCOMMITTED = "Overcommitted", "The node's capacity fell below the resources claimed on it."
