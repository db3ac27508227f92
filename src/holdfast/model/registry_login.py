"""Pull secrets: which entry of a Secret of type kubernetes.io/dockerconfigjson is for the registry of an image. Pure.

An entry is for one registry host, and may be narrowed to repositories below a path. An entry for another host never
matches, so credentials go to their own registry only. No message here repeats a value.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from holdfast.model.image import DEFAULT_REGISTRY, BadReference, ImageReference, parse_reference
from holdfast.model.meta import ApiStruct
from holdfast.model.reasons import Reason
from holdfast.model.secret import DOCKER_CONFIG_JSON, Secret
from holdfast.model.validation import Causes, check_subdomain, check_unique, forbidden, invalid

# Pull secrets of one template. More are refused.
PULL_SECRETS_MAX = 8

DOCKER_CONFIG_KEY = ".dockerconfigjson"
_DOCKER_HUB_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")


class PullSecret(ApiStruct, frozen=True):
    """A Secret of the tenant with credentials for registries, in the form of Kubernetes."""

    name: str = ""


class RegistryLogin(ApiStruct, frozen=True):
    """Credentials of one tenant for the registry of one image. Without `user`, no pull secret has any for it.

    If `reason` is set, a pull secret is missing or cannot be used.
    """

    secret: str = ""
    user: str = ""
    password: str = ""
    reason: str = ""
    message: str = ""

    def __repr__(self) -> str:
        """Without the password: representations end up in logs and tracebacks."""
        return f"RegistryLogin({self.secret}; {self.reason})"


class BadDockerConfig(ValueError):
    """Not in the form of Docker's `config.json`. The message shows nothing of the content."""


class _DockerAuth(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""


class _DockerConfig(msgspec.Struct, frozen=True):
    auths: dict[str, _DockerAuth] = {}


def find_docker_login(config: bytes, reference: ImageReference) -> tuple[str, str] | None:
    """User and password for the image's registry; the entry with the longest path wins. Raises BadDockerConfig."""
    try:
        entries = msgspec.json.decode(config, type=_DockerConfig).auths
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadDockerConfig("not in the form of Docker's config.json") from None
    found: tuple[int, _DockerAuth] | None = None
    for name, entry in entries.items():
        path = _matched_path(name, reference)
        if path is not None and (found is None or len(path) > found[0]):
            found = len(path), entry
    return _decoded(found[1]) if found is not None else None


def _matched_path(name: str, reference: ImageReference) -> str | None:
    """The path of an entry that is for the image; None if the entry is for another registry or repository."""
    host, _, path = name.rpartition("://")[2].partition("/")
    path = path.strip("/")
    registries = _DOCKER_HUB_NAMES if reference.registry == DEFAULT_REGISTRY else (reference.registry,)
    if host.lower() not in registries:
        return None
    if path in ("", "v1", "v2"):  # how Docker itself writes the address of a whole registry
        return ""
    return path if f"{reference.repository}/".startswith(f"{path}/") else None


def _decoded(entry: _DockerAuth) -> tuple[str, str] | None:
    if entry.username:
        return entry.username, entry.password
    if not entry.auth:
        return None
    try:
        user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise BadDockerConfig("not in the form of Docker's config.json") from None
    return user, password


def find_registry_login(
    image: str, pull_secrets: Sequence[PullSecret], find: Callable[[str], Secret | None]
) -> RegistryLogin:
    """The first entry for the image's registry in the opened Secrets that `find` returns by name."""
    try:
        reference = parse_reference(image)
    except BadReference:
        return RegistryLogin()
    for name in (one.name for one in pull_secrets):
        secret = find(name)
        if secret is None:
            message = f"Secret {name}: does not exist in the tenant, or has not reached this region yet (pull secret)"
            return RegistryLogin(reason=Reason.SECRET_MISSING, message=message)
        if secret.type != DOCKER_CONFIG_JSON:
            message = f"Secret {name}: cannot be a pull secret (expected type {DOCKER_CONFIG_JSON})"
            return RegistryLogin(reason=Reason.CONFIG_UNUSABLE, message=message)
        try:
            found = find_docker_login(secret.data.get(DOCKER_CONFIG_KEY, b""), reference)
        except BadDockerConfig as wrong:
            return RegistryLogin(reason=Reason.CONFIG_UNUSABLE, message=f"Secret {name}: {wrong}")
        if found is not None:
            return RegistryLogin(secret=name, user=found[0], password=found[1])
    return RegistryLogin()


def validate_pull_secrets(field: str, secrets: Collection[PullSecret], *, has_image: bool) -> Causes:
    if secrets and not has_image:
        yield forbidden(field, "not allowed without image")
    if len(secrets) > PULL_SECRETS_MAX:
        yield invalid(field, len(secrets), f"must have at most {PULL_SECRETS_MAX} items")
    yield from check_unique(field, _names(secrets))
    for index, name in enumerate(_names(secrets)):
        yield from check_subdomain(f"{field}[{index}].name", name)


def _names(secrets: Collection[PullSecret]) -> Iterator[str]:
    return (secret.name for secret in secrets)
