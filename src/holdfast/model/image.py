"""Image references, as in Docker and Kubernetes: `[registry/]repository[:tag][@digest]`. Pure.

A reference without a registry means docker.io, one without tag and digest means the tag `latest`. Admission, the global
cell and the agent parse references here and nowhere else.
"""

from __future__ import annotations

import enum
import re

import msgspec

from holdfast.model.validation import Causes, invalid

# Length of an image reference. A longer one is refused.
IMAGE_REFERENCE_BYTES_MAX = 512

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_PART = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", re.ASCII)
_REGISTRY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:(?P<port>[0-9]{1,5}))?", re.ASCII
)
_RULE = "must be [registry/]repository[:tag][@sha256:digest], such as registry.example.com/team/web:1.4"


class PullPolicy(enum.StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ImageReference(msgspec.Struct, frozen=True):
    """A parsed reference. `tag` is empty if only a digest was given."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        """The normalised text."""
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


class BadReference(ValueError):
    """The text is not an image reference. The message is the violated rule."""


def is_image_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> ImageReference:
    """Raises BadReference."""
    if len(text.encode(errors="replace")) > IMAGE_REFERENCE_BYTES_MAX:
        raise BadReference(f"must be at most {IMAGE_REFERENCE_BYTES_MAX} bytes")
    rest, at, digest = text.partition("@")
    if at and not is_image_digest(digest):
        raise BadReference("the part after '@' must be sha256: and 64 hexadecimal digits in lower case")
    registry, slash, repository = rest.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, repository = DEFAULT_REGISTRY, rest
    repository, colon, tag = repository.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    found = _REGISTRY.fullmatch(registry)
    if found is None or (found["port"] and not 0 < int(found["port"]) < 65536):
        raise BadReference(f"{_RULE}; the registry is not a host in lower case with an optional port")
    if not all(_PART.fullmatch(part) for part in repository.split("/")):
        raise BadReference(f"{_RULE}; the repository has lower-case letters, digits and separators")
    if colon and not _TAG.fullmatch(tag):
        raise BadReference(f"{_RULE}; the tag has at most 128 letters, digits, '_', '.' and '-'")
    return ImageReference(registry, repository, tag or ("" if digest else DEFAULT_TAG), digest)


def default_pull_policy(reference: ImageReference) -> PullPolicy:
    """As in Kubernetes: `Always` for the tag `latest`, else `IfNotPresent`."""
    latest = reference.tag == DEFAULT_TAG and not reference.digest
    return PullPolicy.ALWAYS if latest else PullPolicy.IF_NOT_PRESENT


def validate_image(field: str, image: str) -> Causes:
    try:
        parse_reference(image)
    except BadReference as wrong:
        yield invalid(field, image, str(wrong))


def with_digest(image: str, digest: str) -> str:
    """The normalised reference with this digest; the image itself without a digest, or if it is no reference."""
    try:
        return str(msgspec.structs.replace(parse_reference(image), digest=digest)) if digest else image
    except BadReference:
        return image
