"""Requires on the node what the template needs of it besides resources: its driver, and the paths that it mounts."""

from __future__ import annotations

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.host_paths import HostPathNeeds, host_path_needs, refused_host_path
from holdfast.model.reasons import Reason
from holdfast.model.template import required_driver
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    driver = required_driver(requirements.template)
    installed = scratch.snapshot.static.drivers
    found: list[Refusal] = [
        (Reason.DRIVER_MISSING, installed.where(lambda there: not eligibility.has_driver(there, driver)))
    ]
    needs, tenant = host_path_needs(requirements.template), requirements.namespace
    if needs:
        allowed = scratch.snapshot.static.host_paths
        found.append(
            (Reason.HOST_PATH_NOT_ALLOWED, allowed.where(lambda rules: bool(refused_host_path(rules, tenant, needs))))
        )
    return found


def host_path_key(requirements: ReplicaRequirements) -> tuple[str, HostPathNeeds] | None:
    """What the answer for host paths depends on; None without any."""
    needs = host_path_needs(requirements.template)
    return (requirements.namespace, needs) if needs else None
