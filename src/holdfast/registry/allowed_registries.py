"""The registries that a node, or the global cell, may contact. Nothing is allowed that is not named here.

The file with credentials has the form of Docker's `config.json`. It belongs to the operator, never to a tenant.
"""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.foundation.checked_http import is_host_pattern, is_network, judged_address, matches_host, port_of
from holdfast.model.image import DEFAULT_REGISTRY, ImageReference
from holdfast.model.registry_login import BadDockerConfig, RegistryLogin, find_docker_login

# Size of the file with credentials. A larger one is refused.
AUTH_FILE_BYTES_MAX = 1024 * 1024

_DOCKER_HUB = "registry-1.docker.io"
_WHERE = (
    "of the agents and the global cell, and restart them (local platform: node.toml in its state directory, then "
    "`holdfast down` and `holdfast up`; machines: agent.toml of each node, and the file of `holdfast serve --images`)"
)
"""Where a registry is allowed. Changed settings need a restart."""


class AllowedRegistries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `images` of a configuration.

    `registries`: as in image references, with the port if there is one. `hosts`: further hosts that a registry may
    refer to, for tokens and for blobs. `networks`: private or loopback networks that hosts may resolve to. `insecure`:
    registries and hosts that are contacted by plain HTTP. `auth_file`: credentials.
    """

    registries: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    insecure: tuple[str, ...] = ()
    auth_file: str = ""

    def error(self) -> str:
        """What is wrong with the configuration; empty if nothing is."""
        for setting, names in (("registries", self.registries), ("hosts", self.hosts), ("insecure", self.insecure)):
            for name in names:
                if not is_host_pattern(name):
                    return f"images.{setting}: {name} is not a host (expected one such as registry.example.com:5000)"
        for network in self.networks:
            if not is_network(network):
                return f"images.networks: {network} is not a network (expected one such as 10.1.0.0/16)"
        if self.auth_file and not self.auth_file.startswith("/"):
            return f"images.auth_file: {self.auth_file} is not an absolute path"
        return ""

    def registry_refusal(self, registry: str) -> str:
        """Why images of the registry may not be pulled; empty if they may."""
        if registry in self.registries:
            return ""
        return f"registry {registry} is not allowed here; next: add it to images.registries {_WHERE}"

    def base_url(self, reference: ImageReference) -> str:
        host = _DOCKER_HUB if reference.registry == DEFAULT_REGISTRY else reference.registry
        scheme = "http" if reference.registry in self.insecure else "https"
        return f"{scheme}://{host}/v2/{reference.repository}"

    def url_refusal(self, url: str) -> str:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), port_of(parts)
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            return "a redirect to something other than http: or https:"
        insecure = any(matches_host(name, host, port, "http") for name in self.insecure)
        if parts.scheme == "http" and not insecure:
            return f"plain HTTP to {host}:{port} is not allowed here; next: add it to images.insecure"
        named = (*self.registries, *self.hosts, *((_DOCKER_HUB,) if DEFAULT_REGISTRY in self.registries else ()))
        if not any(matches_host(name, host, port, parts.scheme) for name in named):
            return f"host {host}:{port} is not allowed here; next: add it to images.hosts"
        return ""

    def address_refusal(self, text: str) -> str:
        address, allowed = judged_address(text, self.networks)
        return "" if allowed else f"address {address} is not public; next: add its network to images.networks"


AUTH_FILE = "images.auth_file"


class RegistryCredentials(msgspec.Struct, frozen=True):
    """`origin` says where they come from, for people. Credentials of the auth file belong to all tenants."""

    user: str
    password: str
    origin: str = AUTH_FILE

    def __repr__(self) -> str:
        """Without the password: representations end up in logs and tracebacks."""
        return f"RegistryCredentials({self.origin})"

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def read_credentials(auth_file: str, reference: ImageReference) -> RegistryCredentials | None:
    """The credentials for a registry; None if the file has none. Read for every pull, so that a new file takes effect.

    Raises ValueError with a message that shows nothing of the file.
    """
    if not auth_file:
        return None
    try:
        raw = Path(auth_file).read_bytes()[: AUTH_FILE_BYTES_MAX + 1]
    except OSError as error:
        raise ValueError(f"{AUTH_FILE}: cannot read it ({error.strerror})") from error
    if len(raw) > AUTH_FILE_BYTES_MAX:
        raise ValueError(f"{AUTH_FILE}: larger than {AUTH_FILE_BYTES_MAX} bytes")
    try:
        found = find_docker_login(raw, reference)
    except BadDockerConfig as wrong:
        raise ValueError(f"{AUTH_FILE}: {wrong}") from wrong
    return RegistryCredentials(*found) if found is not None else None


def credentials_for(
    auth_file: str, login: RegistryLogin | None, reference: ImageReference
) -> RegistryCredentials | None:
    """The tenant's login if its pull secrets have one for the registry, else the credentials of the operator."""
    if login is not None and login.user:
        return RegistryCredentials(login.user, login.password, f"Secret {login.secret}")
    return read_credentials(auth_file, reference)
