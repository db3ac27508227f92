"""The closed vocabularies of stored objects and messages. The previous release fails on a value that it does not know
(docs/decisions/0020), so a new value is read by one release and written by the next.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import typing
from typing import Any

import msgspec

from holdfast import cli, client, console, drills, insight, model, platform
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


def test_no_output_has_a_process_id_of_zero() -> None:
    """`kill 0` signals the caller's own process group. A process that does not run has null, or no field."""
    fields = [(f"{kind.__module__}.{kind.__qualname__}", kind, f) for kind in _structs() for f in _process_ids(kind)]
    assert {f"{name}.{field.name}" for name, _, field in fields} >= {
        "holdfast.model.replica.ExecutionBlock.pid",
        "holdfast.platform.platform_status.ProcessView.pid",
        "holdfast.platform.platform_status.PlatformStatus.supervisor_pid",
    }
    zero = [
        f"{name}.{field.name}"
        for name, kind, field in fields
        if field.type is int and not (kind.__struct_config__.omit_defaults and field.default == 0)
    ]
    assert zero == ["holdfast.platform.processes.ProcessIdentity.pid"], "it exists only for a process that was found"


def _process_ids(kind: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    if not any(name == "pid" or name.endswith("_pid") for name in kind.__struct_fields__):
        return []
    return [f for f in msgspec.structs.fields(kind) if f.name == "pid" or f.name.endswith("_pid")]


def _structs() -> list[type[msgspec.Struct]]:
    """The structs of every package that defines or prints output. The agent's own are not printed."""
    for package in (model, platform, client, insight, drills, console, cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    printing = tuple(f"{package.__name__}." for package in (model, platform, client, insight, drills, console, cli))
    found, left = set[type[msgspec.Struct]](), [msgspec.Struct]
    while left:
        for kind in left.pop().__subclasses__():
            if kind not in found:
                found.add(kind)
                left.append(kind)
    return sorted((k for k in found if k.__module__.startswith(printing)), key=lambda k: (k.__module__, k.__qualname__))
