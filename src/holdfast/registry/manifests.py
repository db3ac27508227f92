"""Manifests, indexes and image configurations of OCI and Docker (schema 2), decoded within limits."""

from __future__ import annotations

import platform

import msgspec

from holdfast.model.image import is_image_digest

# Size of a manifest, an index or an image configuration, which is held in memory. A larger one fails the pull.
IMAGE_MANIFEST_BYTES_MAX = 4 * 1024**2
# Layers of one image. More fail the pull. Docker allows 127.
IMAGE_LAYERS_MAX = 128
# Size of all layers of one image as the registry sends them. A larger image fails the pull.
IMAGE_COMPRESSED_BYTES_MAX = 8 * 1024**3

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class BadManifest(ValueError):
    """The registry's document is not an image that can be run."""


class ImageExceedsLimits(ValueError):
    """The manifest announces more than the limits allow."""


class _TargetPlatform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    size: int = 0
    media_type: str = ""
    platform: _TargetPlatform | None = None


class Manifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def compressed_bytes(self) -> int:
        return sum(layer.size for layer in self.layers)


class _Document(msgspec.Struct, frozen=True):
    """Either kind of document: an index has `manifests`, a manifest has `config` and `layers`."""

    manifests: tuple[Descriptor, ...] = ()
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()


class _RunConfig(msgspec.Struct, frozen=True):
    entrypoint: tuple[str, ...] | None = msgspec.field(name="Entrypoint", default=None)
    cmd: tuple[str, ...] | None = msgspec.field(name="Cmd", default=None)
    env: tuple[str, ...] | None = msgspec.field(name="Env", default=None)
    working_dir: str | None = msgspec.field(name="WorkingDir", default=None)
    user: str | None = msgspec.field(name="User", default=None)


class _ImageConfigFile(msgspec.Struct, frozen=True):
    config: _RunConfig | None = None


class ImageConfig(msgspec.Struct, frozen=True):
    """How the image wants to be run. `uid` and `gid` are those of its user, 0 for none."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    uid: int = 0
    gid: int = 0


def node_architecture() -> str:
    """As registries name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def decode_document(text: bytes, architecture: str) -> Manifest | Descriptor:
    """The manifest, or the descriptor of the manifest for this architecture if the document is an index."""
    try:
        found = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise BadManifest(f"the registry sent no image manifest ({str(error)[:120]})") from error
    if found.config is not None:
        return _checked(Manifest(found.config, found.layers))
    for entry in found.manifests:
        if entry.platform is not None and (entry.platform.os, entry.platform.architecture) == ("linux", architecture):
            return _with_digest(entry)
    raise BadManifest(f"the image has no variant for linux/{architecture}")


def _checked(manifest: Manifest) -> Manifest:
    for part in (manifest.config, *manifest.layers):
        _with_digest(part)
        if part.size < 0:
            raise BadManifest("the manifest has a negative size")
    if len(manifest.layers) > IMAGE_LAYERS_MAX:
        raise ImageExceedsLimits(f"{len(manifest.layers)} layers (at most {IMAGE_LAYERS_MAX} are allowed)")
    if manifest.compressed_bytes > IMAGE_COMPRESSED_BYTES_MAX:
        found = manifest.compressed_bytes
        raise ImageExceedsLimits(f"layers of {found} bytes (at most {IMAGE_COMPRESSED_BYTES_MAX} are allowed)")
    return manifest


def _with_digest(part: Descriptor) -> Descriptor:
    if not is_image_digest(part.digest):
        raise BadManifest(f"the manifest has a digest other than sha256: {part.digest[:80]!r}")
    return part


def decode_config(text: bytes) -> ImageConfig:
    try:
        found = msgspec.json.decode(text, type=_ImageConfigFile).config or _RunConfig()
    except msgspec.DecodeError as error:
        raise BadManifest(f"the image configuration cannot be read ({str(error)[:120]})") from error
    texts = (*(found.entrypoint or ()), *(found.cmd or ()), *(found.env or ()), found.working_dir or "")
    if any("\0" in text for text in texts):
        raise BadManifest("the image configuration contains NUL bytes")
    return ImageConfig(
        entrypoint=found.entrypoint or (),
        cmd=found.cmd or (),
        env=tuple(pair for pair in found.env or () if "=" in pair),
        working_dir=found.working_dir or "",
        user=found.user or "",
    )
