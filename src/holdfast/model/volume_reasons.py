"""Texts of the reasons about volumes, images, ports and values, for `model.reasons`: value and explaining sentence."""

from __future__ import annotations

ReasonText = tuple[str, str]

VOLUME_ON_OTHER_NODE: ReasonText = (
    "VolumeOnOtherNode",
    "The replica's volume is on another node, and local data does not move.",
)
VOLUME_NODE_LOST: ReasonText = (
    "VolumeNodeLost",
    "The node that holds the replica's volume takes no work or is gone. The replica waits for it, because local data "
    "does not move.",
)
VOLUME_TERMINATING: ReasonText = (
    "VolumeTerminating",
    "The replica's volume is being deleted. The replica gets a new one afterwards.",
)
VOLUME_IN_USE: ReasonText = ("VolumeInUse", "Another attempt still uses the volume; a volume has one user at a time.")
VOLUME_NOT_BOUND: ReasonText = (
    "VolumeNotBound",
    "A replica that gets a new volume is reserved and bound at once, without victims.",
)
INSUFFICIENT_STORAGE: ReasonText = ("InsufficientStorage", "The node has not enough space for volumes.")
VOLUME_CLAIM_NOT_FOUND: ReasonText = (
    "VolumeClaimNotFound",
    "The template names a VolumeClaim that does not exist, so the workload gets no region.",
)
VOLUME_DATA_MISSING: ReasonText = (
    "VolumeDataMissing",
    "The node does not have the volume's data, although it had it. Nothing is started without it.",
)
VOLUME_CLAIM_IN_USE: ReasonText = ("ClaimInUse", "Workloads refer to the VolumeClaim; its deletion waits for them.")
VOLUME_CLAIM_DATA_REMAINS: ReasonText = (
    "ClaimDataRemains",
    "The VolumeClaim is deleted when every region has deleted the claim's volumes. A region that is out of contact "
    "does so when it is back.",
)
VOLUME_CLAIM_MISSING: ReasonText = (
    "ClaimMissing",
    "The claim that the volume was made for is not there, and nobody ordered the deletion of its data. The volume is "
    "kept.",
)
VOLUME_CLAIM_FOUND: ReasonText = ("ClaimFound", "The claim that the volume was made for is there again.")
VOLUME_CLAIM_UNUSED: ReasonText = ("ClaimUnused", "No workload refers to the VolumeClaim.")

VOLUME_UNAVAILABLE: ReasonText = (
    "VolumeUnavailable",
    "The node cannot make or mount a volume of the task. The message names the volume.",
)
HOST_PATH_NOT_ALLOWED: ReasonText = (
    "HostPathNotAllowed",
    "The node's configuration does not allow the tenant to mount this path of the node.",
)
IMAGE_PULL_FAILED: ReasonText = (
    "ImagePullFailed",
    "The image could not be pulled: the registry does not answer, or the transfer broke off. It is tried again.",
)
IMAGE_UNUSABLE: ReasonText = (
    "ImageUnusable",
    "A part of the image has another digest than announced, or its layers cannot be unpacked safely.",
)
REGISTRY_DENIED: ReasonText = (
    "RegistryDenied",
    "The registry refuses access, or it is not among the registries that the configuration allows.",
)
IMAGE_UNRESOLVED: ReasonText = (
    "ImageUnresolved",
    "The tag of the image was not resolved to a digest yet, so the revision runs nowhere.",
)
ASSIGNED_PORT_IN_USE: ReasonText = (
    "AssignedPortInUse",
    "A port that the region chose for the replica is in use by a process that is no task of this node. "
    "The replica is placed again with another port.",
)
ARTIFACT_MISMATCH: ReasonText = (
    "ArtifactMismatch",
    "An artifact does not have the expected digest, or its archive cannot be unpacked.",
)
CONFIG_UNREACHABLE: ReasonText = (
    "ConfigUnreachable",
    "The agent cannot read the referenced values from its region, and the node holds none of an earlier run.",
)
