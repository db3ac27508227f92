"""Reads manifests and blobs from a registry. Blocking: callers run it in a thread.

What is returned has the digest that was asked for: the digest is computed here and never taken from a header.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import msgspec

from holdfast.foundation.checked_http import (
    SourceForbidden,
    SourceRefused,
    TransferLimits,
    body,
    bounded,
    failures_named,
    follow,
)
from holdfast.model.image import ImageReference
from holdfast.model.reasons import Reason
from holdfast.registry.allowed_registries import AllowedRegistries, RegistryCredentials
from holdfast.registry.manifests import IMAGE_MANIFEST_BYTES_MAX, MANIFEST_TYPES

# Time without data from a registry. After that, the request has failed.
REGISTRY_TIMEOUT_S = 30.0
# Time to fetch a manifest or a token.
REGISTRY_REQUEST_S = 60.0
# Redirects of one request. More fail it.
REGISTRY_REDIRECTS_MAX = 5

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')

CredentialSource = Callable[[ImageReference], RegistryCredentials | None]


class RegistryRefused(Exception):
    """The registry did not give what was asked for. `reason` is one of `model.reasons`.

    `answered` is False if the registry could not be reached at all: nothing is known about the image.
    """

    def __init__(self, reason: Reason, message: str, *, answered: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.answered = answered


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class RegistryClient:
    """One image's repository at its registry. Tokens are kept for the life of this object, which is one pull."""

    def __init__(self, allowed: AllowedRegistries, reference: ImageReference, credentials: CredentialSource) -> None:
        self._allowed = allowed
        self._reference = reference
        self._credentials = credentials
        self._authorization = ""
        self._used: RegistryCredentials | None = None

    @property
    def used_credentials(self) -> str:
        """Origin of the credentials that the registry asked for; empty if it gave everything to anybody."""
        return self._used.origin if self._used is not None else ""

    def resolve(self) -> str:
        """The digest of the reference's tag."""
        return digest_of(self._document(self._reference.tag))

    def manifest(self, digest: str) -> bytes:
        """The manifest or index with this digest."""
        found = self._document(digest)
        self._check(digest, digest_of(found))
        return found

    def small_blob(self, digest: str) -> bytes:
        with self.blob(digest, IMAGE_MANIFEST_BYTES_MAX, REGISTRY_REQUEST_S) as chunks:
            found = b"".join(chunks)
        self._check(digest, digest_of(found))
        return found

    @contextlib.contextmanager
    def blob(self, digest: str, size_max: int, transfer_s: float) -> Iterator[Iterator[bytes]]:
        """The blob in chunks. The caller compares its digest when it is complete. Raises RegistryRefused."""
        limits = TransferLimits(size_max, REGISTRY_TIMEOUT_S, transfer_s, REGISTRY_REDIRECTS_MAX)
        with self._opened(f"blobs/{digest}", limits) as chunks:
            yield chunks

    def _document(self, name: str) -> bytes:
        limits = TransferLimits(
            IMAGE_MANIFEST_BYTES_MAX, REGISTRY_TIMEOUT_S, REGISTRY_REQUEST_S, REGISTRY_REDIRECTS_MAX
        )
        with self._opened(f"manifests/{name}", limits, {"Accept": ", ".join(MANIFEST_TYPES)}) as chunks:
            return b"".join(chunks)

    def _check(self, expected: str, found: str) -> None:
        if expected != found:
            message = f"image {self._reference}: wrong digest (expected {expected}, found {found})"
            raise RegistryRefused(Reason.IMAGE_UNUSABLE, message)

    # --- requests --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(
        self, path: str, limits: TransferLimits, headers: dict[str, str] | None = None
    ) -> Iterator[Iterator[bytes]]:
        if refusal := self._allowed.registry_refusal(self._reference.registry):
            raise RegistryRefused(Reason.REGISTRY_DENIED, f"image {self._reference}: {refusal}")
        url = f"{self._allowed.base_url(self._reference)}/{path}"
        with contextlib.ExitStack() as connection, self._named_failures():
            response, deadline, own = self._get(url, limits, headers or {}, connection)
            # Only the registry itself may ask for credentials: a host that it redirects to would name its own server.
            if response.status == 401 and not self._authorization and own:
                challenge = response.headers.get("WWW-Authenticate", "")
                connection.close()
                self._authorization = self._authorize(challenge)
                response, deadline, _ = self._get(url, limits, headers or {}, connection)
            self._check_status(response, path)
            yield bounded(body(response, deadline, limits), limits.size_max)

    def _get(
        self, url: str, limits: TransferLimits, headers: dict[str, str], connection: contextlib.ExitStack
    ) -> tuple[http.client.HTTPResponse, float, bool]:
        """The response, its deadline, and whether the host of the URL sent it."""
        deadline = time.monotonic() + limits.transfer_s
        sent = {**headers, **({"Authorization": self._authorization} if self._authorization else {})}
        with failures_named(deadline, limits):
            response, own = follow(self._allowed, url, deadline, limits, connection=connection, headers=sent)
        return response, deadline, own

    @contextlib.contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except SourceForbidden as refusal:
            raise RegistryRefused(Reason.REGISTRY_DENIED, f"image {self._reference}: {refusal}") from refusal
        except SourceRefused as refusal:
            message = f"image {self._reference}: cannot read from registry {self._reference.registry} ({refusal})"
            raise RegistryRefused(Reason.IMAGE_PULL_FAILED, message, answered=False) from refusal

    def _check_status(self, response: http.client.HTTPResponse, path: str) -> None:
        if response.status == 200:
            return
        kind = path.partition("/")[0]
        shown = f"image {self._reference}: the registry answered {response.status} for its {kind}"
        if response.status in (401, 403):
            raise RegistryRefused(Reason.REGISTRY_DENIED, f"{shown}; next: {self._advice()}")
        if response.status == 404:
            raise RegistryRefused(Reason.IMAGE_NOT_FOUND, shown)
        raise RegistryRefused(Reason.IMAGE_PULL_FAILED, shown, answered=response.status < 500)

    def _authorize(self, challenge: str) -> str:
        """The value of the header Authorization that the challenge asks for; empty if there are no credentials."""
        scheme, _, rest = challenge.partition(" ")
        try:
            known = self._used = self._credentials(self._reference)
        except ValueError as error:
            raise RegistryRefused(Reason.REGISTRY_DENIED, f"image {self._reference}: {error}") from error
        if scheme.lower() == "basic":
            return known.basic() if known is not None else ""
        parameters = dict(_PARAMETER.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in parameters:
            return ""
        asked = {"scope": f"repository:{self._reference.repository}:pull"}
        if "service" in parameters:
            asked["service"] = parameters["service"]
        limits = TransferLimits(
            IMAGE_MANIFEST_BYTES_MAX, REGISTRY_TIMEOUT_S, REGISTRY_REQUEST_S, REGISTRY_REDIRECTS_MAX
        )
        self._authorization = known.basic() if known is not None else ""
        with contextlib.ExitStack() as connection:
            try:
                response, deadline, _ = self._get(f"{parameters['realm']}?{urlencode(asked)}", limits, {}, connection)
            finally:
                self._authorization = ""
            if response.status != 200:
                shown = f"image {self._reference}: the registry's token server answered {response.status}"
                raise RegistryRefused(Reason.REGISTRY_DENIED, f"{shown}; next: {self._advice()}")
            text = b"".join(bounded(body(response, deadline, limits), limits.size_max))
        try:
            found = msgspec.json.decode(text, type=_Token)
        except msgspec.DecodeError as error:
            raise RegistryRefused(
                Reason.IMAGE_PULL_FAILED, f"image {self._reference}: the token server sent no token"
            ) from error
        return f"Bearer {found.token or found.access_token}"

    def _advice(self) -> str:
        if self._used is not None:
            return f"check the credentials in {self._used.origin}"
        registry = self._reference.registry
        return f"name a Secret with credentials for {registry} in imagePullSecrets, or set images.auth_file"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
