"""The closed vocabularies of stored objects and messages. The previous release fails on a value that it does not know
(docs/decisions/0020), so a new value is read by one release and written by the next.
"""

from __future__ import annotations

import enum
import typing
from typing import Any

import msgspec

from holdfast.model import placement_api
from holdfast.model.kinds import ALL

CLOSED = {
    "CapacityClass": "Firm Reclaimable Recovery",
    "CompletionMode": "NonIndexed Indexed",
    "ConcurrencyPolicy": "Allow Forbid Replace",
    "ContactState": "NoLease Live Expired Fenced",
    "DataPhase": "Present Deleted",
    "DesiredRunState": "Run Stop",
    "DriverName": "process oci hollow",
    "EventState": "Raised Resolved Occurred",
    "ExclusiveScope": "Region Global",
    "FilterName": "Health Schedulable Residency Tenancy Labels Taints Resources Devices Ports Spread Affinity Volumes",
    "GrantClass": "Normal Recovery Emergency",
    "GuardAction": "Pause Rollback",
    "HealthState": "Unknown Healthy Suspect Lost AwaitingWitness",
    "Isolation": "Shared Dedicated",
    "Medium": "Disk Memory",
    "NetworkMode": "Host Private",
    "OnChange": "Update Restart Ignore",
    "OnRegionLoss": "Wait StartEmpty",
    "Operator": "In NotIn Exists DoesNotExist Gt Lt",
    "PullPolicy": "Always IfNotPresent Never",
    "ProgramKind": "Init Sidecar Main",
    "ProgramState": "Waiting Running Ended",
    "TerminationMessagePolicy": "File FallbackToLogsOnError",
    "OverrideKind": (
        "AvoidZone AvoidRegion DeclareRegionLost PauseAutoscaler PauseRepair ApproveRepair "
        "EmergencyQuota RaisePriority PinPolicy ShrinkBudget ConfirmDeletion PauseRebalance"
    ),
    "PartitionMode": "Wait Provisional",
    "Phase": "Starting Running BackingOff Stopping Stopped Failed Succeeded",
    "PromotionStage": "Draft Shadow Canary Active",
    "Protocol": "TCP UDP",
    "Purpose": "Normal Recovery",
    "QueueKey": "Priority Deadline Fairness Size Age",
    "ReclaimPolicy": "Retain Delete",
    "RecoveryPhase": "Open Recovered FailingBack Closed",
    "Severity": "Info Warning Critical",
    "ReleaseAction": "Stop Free",
    "ReservationPhase": "Nominated Firm Consumed Released",
    "RestartPolicy": "Always OnFailure Never",
    "PlacementOutcome": "Accepted Already Rejected",
    "ScoreName": (
        "Locality Cost Fragmentation GpuShape ArtifactLocality Balance Packing Spread Taints Evictions ImageLocality"
    ),
    "TaintEffect": "NoSchedule PreferNoSchedule NoExecute",
    "WorkloadType": "Service Batch",
}
"""Add new values here. They may be written only by the release after the first that reads them."""

MESSAGES = (
    placement_api.ReserveRequest,
    placement_api.BindRequest,
    placement_api.ReleaseRequest,
    placement_api.RenewRequest,
    placement_api.PlacementResponse,
)


def test_new_values_of_closed_vocabularies_take_two_releases() -> None:
    found: dict[str, str] = {}
    for kind in (*(row.type for row in ALL), *MESSAGES):
        _walk(kind, frozenset(), found)
    changed = {name for name in found.keys() | CLOSED.keys() if found.get(name) != CLOSED.get(name)}
    assert not changed, f"{sorted(changed)}: read docs/decisions/0020-version-skew.md, then change CLOSED"


def _walk(kind: Any, parents: frozenset[Any], found: dict[str, str]) -> None:
    for part in typing.get_args(kind):
        _walk(part, parents, found)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        found[kind.__name__] = " ".join(str(member.value) for member in kind)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in parents:
        for field in msgspec.structs.fields(kind):
            _walk(field.type, parents | {kind}, found)
