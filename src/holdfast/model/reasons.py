"""Every reason the system gives, once. They are stable: people alert on them and controllers act on them.

Each has a sentence that says what it means and what to do. `docs/reasons.md` is generated from this table.
"""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Used in conditions, events, refusals, pending histograms and metrics labels."""

    def __new__(cls, value: str, says: str) -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.says = says
        return member

    says: str

    # Placement refusals by the authority
    REPLICA_GONE = "ReplicaGone", "The replica no longer exists, or was recreated under another uid; drop the proposal."
    REPLICA_TERMINATING = "ReplicaTerminating", "The replica is being deleted and gets no new place."
    STALE_ATTEMPT = "StaleAttempt", "The proposal is for an attempt that was released; plan again from the current one."
    TEMPLATE_CHANGED = "TemplateChanged", "The proposal was made for another template of the replica."
    INTENT_MISMATCH = (
        "IntentMismatch",
        "The same intent was committed earlier with another payload; adopt the stored one.",
    )
    ALREADY_CLAIMED = "AlreadyClaimed", "The replica already holds a claim; the facts name it."
    NODE_GONE = "NodeGone", "The node does not exist in this region."
    NODE_UNREACHABLE = "NodeUnreachable", "The node's lease is not live; wait for its agent, or place elsewhere."
    NODE_CORDONED = "NodeCordoned", "An operator marked the node unschedulable."
    NODE_DRAINING = "NodeDraining", "The node is being drained."
    NODE_TERMINATING = "NodeTerminating", "The node is being deleted."
    NODE_FENCED = "NodeFenced", "The node was fenced and has not registered anew."
    NODE_RECONCILING = "NodeReconciling", "The node came back and has not yet matched what runs with what is bound."
    NODE_QUARANTINED = (
        "NodeQuarantined",
        "Work of several workloads could not be started on the node; it gets none until the evidence expires.",
    )
    NODE_AVOIDED = "NodeAvoided", "An override keeps new work away from the node's zone or region."
    DRIVER_MISSING = "DriverMissing", "The node does not have the driver the template asks for."
    INSUFFICIENT_CPU = "InsufficientCpu", "Not enough free CPU on the node."
    INSUFFICIENT_MEMORY = "InsufficientMemory", "Not enough free memory on the node."
    INSUFFICIENT_RESOURCE = "InsufficientResource", "Not enough of a resource on the node; the facts name it."
    DEVICE_TAKEN = "DeviceTaken", "The device has an owner; the facts name its claim."
    INSUFFICIENT_DEVICES = "InsufficientDevices", "Not enough free devices of the wanted kind and model on the node."
    PORT_TAKEN = "PortTaken", "A port that the work needs is in use on the node."
    PORTS_EXHAUSTED = "PortsExhausted", "The node has no free port left in its range."
    NO_GRANT = "NoGrant", "This region holds no grant for the tenant; an operator sets a Quota."
    QUOTA_EXCEEDED = "QuotaExceeded", "The tenant's limit in this region would be exceeded."
    GRANT_EXPIRED = "GrantExpired", "The region lost touch with the global cell and may not spend the grant any more."
    HELD_WHILE_CUT_OFF = (
        "HeldWhileCutOff",
        "The region is cut off and may place only provisional work; the message says why this is none. It waits.",
    )
    RESIDENCY_VIOLATED = "ResidencyViolated", "The workload's rules forbid this region, zone or pool."
    TENANCY_VIOLATED = "TenancyViolated", "Dedicated nodes and shared tenants do not mix."
    RESERVATION_EXPIRED = "ReservationExpired", "The reservation ran out before it was bound; reserve again."
    RESERVATION_MISSING = "ReservationMissing", "There is no reservation for this intent; reserve first."
    GANG_INCOMPLETE = "GangIncomplete", "Not enough members of the gang could be placed together."
    NOT_PROVEN = (
        "NotProven",
        "The claim cannot be freed yet: the node has neither acknowledged the stop nor been fenced.",
    )
    NOT_LEADER = "NotLeader", "This server is not the region's authority at the moment."

    # Planner refusals, beyond those above
    ZONE_NOT_ALLOWED = "ZoneNotAllowed", "The workload's placement does not allow the node's zone."
    POOL_NOT_ALLOWED = "PoolNotAllowed", "The workload's placement does not allow the node's pool."
    LABELS_DO_NOT_MATCH = "LabelsDoNotMatch", "The node's labels do not satisfy the selector or an expression."
    TAINT_NOT_TOLERATED = "TaintNotTolerated", "The node has a taint that the workload does not tolerate."
    SPREAD_VIOLATED = "SpreadViolated", "Placing here would exceed the allowed skew between zones or nodes."
    AFFINITY_NOT_MET = "AffinityNotMet", "No matching replica is near, and a rule asks for one."
    ANTI_AFFINITY_VIOLATED = "AntiAffinityViolated", "A replica that must not be near is."
    NO_NODES = "NoNodes", "The region has no nodes at all."

    EXPRESSION_REFUSED = "ExpressionRefused", "A filter expression of the active policy refuses the node."
    NO_VICTIMS = "NoVictims", "Preemption would not help: no lower-ranked work whose leaving makes enough room may go."
    PREEMPTION_BUDGET_SPENT = (
        "PreemptionBudgetSpent",
        "The tenant has caused as many evictions as the policy allows it per minute.",
    )
    WAITING_FOR_VICTIMS = "WaitingForVictims", "A place is reserved; its present holders are being asked to leave."
    VICTIM_NOT_ALLOWED = (
        "VictimNotAllowed",
        "A named victim is not there, is of the same or a higher rank, or leaves for someone else.",
    )
    WAITING_FOR_GANG = "WaitingForGang", "A place is reserved; it is bound when enough members of the gang have one."
    DEADLINE_AT_RISK = "DeadlineAtRisk", "Most of the time until the deadline is over and replicas still wait."
    DEADLINE_MISSED = "DeadlineMissed", "The deadline passed while replicas still waited for a place."

    # Assignment
    NO_REGION_ALLOWED = "NoRegionAllowed", "No known region satisfies the workload's placement rules."
    REGION_NOT_HEALTHY = "RegionNotHealthy", "Regions that would be allowed are not healthy at the moment."
    ASSIGNED = "Assigned", "Every replica has a region."
    PARTLY_ASSIGNED = "PartlyAssigned", "Some replicas have no region yet."
    MOVED_ON = "MovedOn", "Replicas that waited in a full region were given to another one that has room for them."

    # Workload conditions
    ALL_SERVING = "AllServing", "Every wanted replica serves."
    SOME_SERVING = "SomeServing", "Fewer replicas serve than are wanted."
    NONE_SERVING = "NoneServing", "No replica serves."
    COMPLETE = "Complete", "All completions succeeded."
    IN_PROGRESS = "InProgress", "Work is under way."
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded", "Too many replicas of the batch failed."
    ON_TIME = "OnTime", "The batch is expected to be done by its deadline."
    ROLLOUT_PROGRESSING = "RolloutProgressing", "A new revision is being rolled out."
    ROLLOUT_PAUSED = "RolloutPaused", "The rollout waits until it is resumed."
    ROLLOUT_COMPLETE = "RolloutComplete", "Every region runs the wanted revision."
    ROLLING_BACK = "RollingBack", "The rollout made no progress in its time; the last good revision comes back."
    ROLLED_BACK = "RolledBack", "The last good revision runs again; change the template to try once more."
    ROLLOUT_FAILED = "RolloutFailed", "The rollout made no progress in its time, and nothing was rolled back."
    CONFINED = "Confined", "Work is held to what it asked for by control groups."
    WEAKLY_CONFINED = "WeaklyConfined", "The node has no control groups; the message says what that means."

    # Execution, from the agent
    STARTED = "Started", "The process was started."
    BECAME_READY = "BecameReady", "The probes passed."
    BECAME_UNREADY = "BecameUnready", "The readiness probe failed."
    STARTUP_FAILED = "StartupFailed", "The startup probe did not pass in time; the process was stopped."
    LIVENESS_FAILED = "LivenessFailed", "The liveness probe failed; the process was restarted."
    EXITED = "Exited", "The process ended by itself."
    KILLED = "Killed", "The process was ended by a signal."
    OUT_OF_MEMORY = "OutOfMemory", "The process exceeded its memory limit."
    COMMAND_NOT_FOUND = "CommandNotFound", "The command does not exist or cannot be executed on the node."
    START_ERROR = "StartError", "The process could not be started; the message has the system's words."
    ARTIFACT_MISSING = "ArtifactMissing", "An artifact is not there."
    ARTIFACT_MISMATCH = "ArtifactMismatch", "An artifact does not have the digest it should have."
    TOO_MANY_PROCESSES = "TooManyProcesses", "The work reached the number of processes it may have."
    DISK_FULL = "DiskFull", "The node has no room to start the work; free some, or raise the quota of its disk."
    BACKING_OFF = "BackingOff", "Restarting after a pause, as it keeps ending."
    NEVER_STARTED = "NeverStarted", "The work was withdrawn before it was started."
    STOPPED_AS_ASKED = "StoppedAsAsked", "The work was stopped on request."

    # Contact, release, traffic
    LEASE_LAPSED = "LeaseLapsed", "The node's lease was not renewed in time."
    LEASE_RENEWED = "LeaseRenewed", "The node's agent is heard."
    NODE_LOST = "NodeLost", "The node was fenced; the replica is placed elsewhere."
    SCALED_DOWN = "ScaledDown", "Fewer replicas are wanted."
    REVISION_REPLACED = "RevisionReplaced", "The replica runs an older revision."
    OWNER_DELETED = "OwnerDeleted", "The workload or assignment is going away."
    DELETED = "Deleted", "Someone deleted the replica itself."
    DRAINED = "Drained", "The node is being drained."
    BUDGET_EXHAUSTED = "BudgetExhausted", "As many replicas are away as the workload's disruption budget allows."
    DRAIN_OVERDUE = "DrainOverdue", "The drain did not end in its time; the message says which replica blocks and why."
    PREEMPTED = "Preempted", "A workload of higher rank needed the place."
    FINISHED = "Finished", "The work ended; its claims are returned."
    PROVISIONAL_ENDED = (
        "ProvisionalEnded",
        "Work that a region placed while it was cut off ran to its time, as nobody confirmed it.",
    )
    PROVISIONAL_WITHDRAWN = (
        "ProvisionalWithdrawn",
        "The region is in touch again, and its grant does not cover what it placed while it was cut off.",
    )
    NODE_RETURNED = "NodeReturned", "The node came back without the work."
    ADDED_TO_ENDPOINT = "AddedToEndpoint", "The replica receives traffic."
    WITHDRAWN_FROM_ENDPOINT = "WithdrawnFromEndpoint", "The replica receives no more traffic."

    # The path
    REPLICA_CREATED = "ReplicaCreated", "A replica was created and queued."
    CANNOT_PLACE = "CannotPlace", "No node fits at the moment; the message counts why."
    WAITING = "Waiting", "Waiting; the message says for what and until when."
    GRANTED = "Granted", "Every region holds what it was meant to."
    SHRINK_PENDING = "ShrinkPending", "A region has not yet acknowledged a smaller limit."
    FROZEN = "Frozen", "A region was out of touch for a whole lease; its grant counts in full and is not spent."
    OVER_QUOTA = "OverQuota", "More is in use than the quota allows, after an emergency ended; the excess is drained."
    WITHIN_QUOTA = "WithinQuota", "Use is within the quota."
    FENCED = "Fenced", "The node's lease epoch was fenced."
    PUBLISHED = "Published", "The policy has an immutable revision that regions use."
    HEARD = "Heard", "The region reports."
    SILENT = "Silent", "The region has not reported for a while."
    IS_IT_ME = (
        "IsItMe",
        "No region is heard at all: the global cell may be the one that is cut off, so it concludes nothing.",
    )
    NO_WITNESS = (
        "NoWitness",
        "The region is silent and no other region reports what it sees; only an override proceeds.",
    )
    WITNESS_DISAGREES = (
        "WitnessDisagrees",
        "The region is silent towards the global cell, and most regions that report still reach it.",
    )
    WITNESSED = "Witnessed", "The region is silent, and most regions that report do not reach it either."
    REGION_LOST = "RegionLost", "The region is lost; nothing it last said of its replicas counts."
    DECLARED_LOST = "DeclaredLost", "An override declares the region lost."
    CAPACITY_LOST = (
        "CapacityLost",
        "The region reports less live capacity than it was given work for, or a whole zone gone.",
    )
    CAPACITY_PRESENT = "CapacityPresent", "The region, or the node, has the capacity for what it was given."

    # Recovery
    RECOVERY_OPENED = "RecoveryOpened", "A region's loss is being recovered from; the clock runs."
    RECOVERING = "Recovering", "Replicas are on their way in the target region."
    RECOVERED = "Recovered", "Every critical workload serves in a healthy region again."
    FAILING_BACK = "FailingBack", "The region is back; what was recovered elsewhere is given back."
    RECOVERY_CLOSED = "RecoveryClosed", "Everything that the recovery used was given back."
    WAITING_FOR_TURN = "WaitingForTurn", "The workload's wave has not begun; starts are paced."
    NO_TARGET = "NoTarget", "No healthy region may hold the workload; it stays short until one does."
    TARGET_STUCK = "TargetStuck", "The target region took the workload and did not get on with it in the time allowed."
    PROMISE_MISSED = "PromiseMissed", "The recovery took longer than the promise allows."
    PLACE_KEPT = "PlaceKept", "The recovery place is kept on its node."
    PLACES_KEPT = "PlacesKept", "Every recovery place of the budget is kept."
    PLACES_MISSING = "PlacesMissing", "Some recovery places of the budget fit on no node at the moment."
    BACKED = "Backed", "The recovery promise holds for the loss of any one region or zone."
    NOT_BACKED = "NotBacked", "Kept places and allowances do not cover the promise; the message names the bottleneck."

    PROMOTED = "Promoted", "Every region that should decide by the policy revision does."
    STALLED = "Stalled", "A region does not decide by the new policy revision yet; it keeps its last one."
    GUARD_BREACHED = (
        "GuardBreached",
        "The policy revision did badly by its own guard and was stopped; change the policy to try again.",
    )
    WITHIN_GUARD = "WithinGuard", "The policy revision does as its guard asks, or has none."
    NOT_ACTING = "NotActing", "The policy is a draft or a shadow: it decides nothing."

    STAGE_OVERDUE = (
        "StageOverdue",
        "The replica has stayed at a stage longer than is usual; repair says so, or asks for another place.",
    )
    FINALIZER_STUCK = "FinalizerStuck", "A finalizer's owner has not removed it in time; the message names both."
    REPAIRED = "Repaired", "The replica gave up a place where it did not start."

    # Autoscaling
    SCALED_BY_LOAD = "ScaledByLoad", "The number of replicas follows the load."
    LOAD_WITHIN_TARGET = "LoadWithinTarget", "The load is near its target; nothing changes."
    LOAD_UNKNOWN = "LoadUnknown", "No load was pushed, or it is too old to decide by; the number stays as it is."
    SCALE_HELD = (
        "ScaleHeld",
        "More replicas would not help: those there are wait for a place or are not ready; the message says why.",
    )
    SCALE_LIMITED = "ScaleLimited", "The load asks for another number than its limits allow at this moment."
    AUTOSCALER_PAUSED = "AutoscalerPaused", "An override keeps the number of replicas as it is."

    POOL_STEADY = "PoolSteady", "The pool has the nodes it should have."
    POOL_GROWING = "PoolGrowing", "Work or recovery places wait for room; nodes are on their way."
    POOL_SHRINKING = "PoolShrinking", "A node that has held nothing for the pool's idle time is given up."
    POOL_FULL = "PoolFull", "Work or recovery places wait for room, and the pool has as many nodes as it may."

    # Overrides
    APPROVAL_NEEDED = "ApprovalNeeded", "The override acts only after a second person has approved it."
    OVERRIDE_ACTIVE = "OverrideActive", "The override acts until its deadline."
    OVERRIDE_EXPIRED = "OverrideExpired", "The override's time is over; it acts no more."
    OVERRIDE_UNCOUNTED = (
        "OverrideUncounted",
        "A restart of the region lost the count of the override's time: what allows more than usual does not act there "
        "until the global cell is heard.",
    )
    OVERRIDE_REVOKED = "OverrideRevoked", "Someone took the override back; it acts no more."
    EFFECT_GONE = "EffectGone", "It was verified that nothing of an ended override acts any more."
    EFFECT_REMAINS = "EffectRemains", "An ended override's effect is still being taken back; the message says where."

    REJOINING = (
        "Rejoining",
        "The cell was restored from a backup: a region binds nothing until its agents were heard or fenced, the global "
        "cell grants nothing new until every region has said what it holds.",
    )

    OVERCOMMITTED = "Overcommitted", "The node's capacity shrank below what is claimed on it."
