"""Status blocks of a Workload with writers of their own: the digest of its image, the versions of its content."""

from __future__ import annotations

from holdfast.model.meta import ApiStruct


class ImageBlock(ApiStruct, frozen=True):
    """The digest of the template's tag, resolved once per revision. Written by the global cell's image resolver.

    Without `digest` the last attempt failed, and `reason` and `message` say why.
    """

    revision: str
    image: str
    digest: str = ""
    reason: str = ""
    message: str = ""
    at: str = ""


class ConfigBlock(ApiStruct, frozen=True):
    """Versions of the Secrets and ConfigMaps whose changes replace the replicas (`onChange: Restart`)."""

    versions: dict[str, str] = {}
