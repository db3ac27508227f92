"""Volumes of a template: directories that every program of the task sees at the same path.

Admission and the agent apply the same rules. Which paths of a node a tenant may mount is decided by the node's
configuration.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.quantity import DISK, MEMORY, Amount, BadQuantity, amounts
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_unique,
    forbidden,
    has_control_characters,
    invalid,
    required,
)
from holdfast.model.volume import OnRegionLoss, ReclaimPolicy, VolumeClaim, volume_bytes

# Volumes of a template. More are refused: each is a mount for every program of the task.
VOLUMES_PER_REPLICA_MAX = 16
# Length of a mount path or of a path of the node. Linux refuses a longer one (PATH_MAX).
VOLUME_PATH_BYTES_MAX = 1024
# Smallest size of a scratch volume. A file system of its own needs some space for itself.
SCRATCH_BYTES_MIN = 1024 * 1024

_SYSTEM = ("/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot")
"""Nothing is mounted at or below these: programs of the node are read from there."""
_PRIVATE = ("/tmp", "/var/tmp")
"""Nothing is mounted at or below these: they are the task's own already."""
_SHARED = ("/", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/var", "/var/lib", "/var/run", "/mnt", "/media")
"""Nothing is mounted over these as a whole, only below."""


class Medium(enum.StrEnum):
    DISK = "Disk"
    MEMORY = "Memory"


class ScratchVolume(ApiStruct, frozen=True):
    """Empty space for one run of the task, deleted with it. `medium: Memory` is a part of the task's memory."""

    size_limit: Amount = ""
    medium: Medium = visible_default(Medium.DISK)


class HostPathVolume(ApiStruct, frozen=True):
    """A directory or file of the node, if the node's configuration allows it to the tenant."""

    path: str = ""


class ClaimVolume(ApiStruct, frozen=True):
    """Persistent space of the replica, by the VolumeClaim `name`. The other fields are what the claim says: only
    Holdfast sets them, in an Assignment and what follows from it."""

    name: str
    size: Amount = ""
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.RETAIN
    on_region_loss: OnRegionLoss = OnRegionLoss.WAIT
    uid: str = ""


class TemplateVolume(ApiStruct, frozen=True):
    """Exactly one of scratch, hostPath and claim."""

    name: str
    mount_path: str = ""
    read_only: bool = False
    scratch: ScratchVolume | None = None
    host_path: HostPathVolume | None = None
    claim: ClaimVolume | None = None


def claim_bytes(volumes: Sequence[TemplateVolume]) -> int:
    """Space of all persistent volumes of one replica; 0 while their claims are not known."""
    found = (volume.claim.size for volume in volumes if volume.claim is not None)
    return sum(volume_bytes(size) for size in found if size)


def with_claim_terms(
    volumes: Sequence[TemplateVolume], claims: Mapping[str, VolumeClaim]
) -> tuple[TemplateVolume, ...]:
    """The volumes with what their VolumeClaims say, by name; without claims, as the user wrote them."""
    return tuple(
        volume
        if volume.claim is None
        else msgspec.structs.replace(volume, claim=_claim_of(volume.claim.name, claims.get(volume.claim.name)))
        for volume in volumes
    )


def _claim_of(name: str, claim: VolumeClaim | None) -> ClaimVolume:
    if claim is None:
        return ClaimVolume(name)
    terms = claim.spec
    return ClaimVolume(name, terms.size, terms.reclaim_policy, terms.on_region_loss, claim.uid)


def validate_claim_use(volumes: Sequence[TemplateVolume], unsuited: str) -> Causes:
    """`unsuited` names what the workload is that replicas with volumes cannot be; empty if they can."""
    if unsuited and any(volume.claim is not None for volume in volumes):
        yield forbidden("spec.template.volumes", f"a volume with a claim is not allowed with {unsuited}")


def scratch_bytes(scratch: ScratchVolume) -> int:
    """Raises BadQuantity."""
    return amounts({DISK: scratch.size_limit})[DISK]


def volume_env_name(name: str) -> str:
    """The variable that tells a program where the volume is."""
    return f"HOLDFAST_VOLUME_{name.upper().replace('-', '_')}"


def validate_volumes(field: str, volumes: Sequence[TemplateVolume], resources: Mapping[str, Amount]) -> Causes:
    if len(volumes) > VOLUMES_PER_REPLICA_MAX:
        yield invalid(field, len(volumes), f"must have at most {VOLUMES_PER_REPLICA_MAX} items")
    yield from check_unique(field, (volume.name for volume in volumes))
    yield from check_unique(field, (volume.mount_path for volume in volumes))
    yield from check_unique(field, (volume.claim.name for volume in volumes if volume.claim is not None))
    for index, volume in enumerate(volumes):
        at = f"{field}[{index}]"
        yield from check_dns_label(f"{at}.name", volume.name)
        kinds = [name for name in ("scratch", "host_path", "claim") if getattr(volume, name) is not None]
        if len(kinds) != 1:
            yield invalid(at, volume.name, "exactly one of scratch, hostPath, claim must be set")
        if rule := mount_path_error(volume.mount_path):
            yield invalid(f"{at}.mountPath", volume.mount_path, rule)
        for other in volumes:
            if other.mount_path.startswith(f"{volume.mount_path}/"):
                yield invalid(f"{at}.mountPath", volume.mount_path, f"must not contain that of volume {other.name}")
        if volume.claim is not None:
            yield from check_dns_label(f"{at}.claim.name", volume.claim.name)
            if volume.claim != ClaimVolume(volume.claim.name):
                yield forbidden(f"{at}.claim", "has only a name; size and policies are those of the VolumeClaim")
        if volume.host_path is not None and (rule := host_path_error(volume.host_path.path)):
            yield invalid(f"{at}.hostPath.path", volume.host_path.path, rule)
    yield from _validate_sizes(field, volumes, resources)


def _validate_sizes(field: str, volumes: Sequence[TemplateVolume], resources: Mapping[str, Amount]) -> Causes:
    """A size is always given, and all together fit into the resources of the task, where these are given."""
    used = {DISK: 0, MEMORY: 0}
    for index, volume in enumerate(volumes):
        if volume.scratch is None:
            continue
        at = f"{field}[{index}].scratch.sizeLimit"
        if volume.scratch.size_limit in ("", None):
            yield required(at, "for example 100Mi")
            continue
        try:
            size = scratch_bytes(volume.scratch)
        except BadQuantity as error:
            yield invalid(at, volume.scratch.size_limit, str(error))
            continue
        if size < SCRATCH_BYTES_MIN:
            yield invalid(at, volume.scratch.size_limit, "must be at least 1Mi")
        used[MEMORY if volume.scratch.medium is Medium.MEMORY else DISK] += size
    try:
        given = amounts(resources)
    except BadQuantity:
        return  # reported by the check of resources
    for name, total in used.items():
        if total and name in given and total > given[name]:
            yield invalid(field, total, f"the scratch volumes need more than resources.{name} of the template")
    if used[MEMORY] and MEMORY not in given:
        yield required(field, "a scratch volume with medium Memory needs resources.memory, which it is a part of")


def mount_path_error(path: str) -> str:
    """Why nothing can be mounted at this path; empty if it is well-formed."""
    if rule := _path_error(path):
        return rule
    if path in _SHARED:
        return f"must not cover {path}; choose a directory below it"
    for folder in (*_SYSTEM, *_PRIVATE):
        if path == folder or path.startswith(f"{folder}/"):
            return f"must not be at or below {folder}"
    return ""


def host_path_error(path: str) -> str:
    """Why this cannot be the path of a hostPath volume; empty if it is well-formed."""
    if rule := _path_error(path):
        return rule
    return "must not be the root directory" if path == "/" else ""


def _path_error(path: str) -> str:
    if not path.startswith("/"):
        return "must be an absolute path"
    if len(path.encode(errors="replace")) > VOLUME_PATH_BYTES_MAX:
        return f"must have at most {VOLUME_PATH_BYTES_MAX} bytes"
    if has_control_characters(path):
        return "must not contain control characters"
    parts = path.split("/")[1:]
    if path != "/" and any(part in ("", ".", "..") for part in parts):
        return "must be normal: without '.', '..', '//' and a '/' at the end"
    return ""
