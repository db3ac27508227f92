"""Where a node's artifacts may come from: the allow-list in the node's configuration, and the readers that apply it.

- Without configuration no source is allowed.
- A file is read only below a named directory, through its descriptor, without following links.
- A host must be named. The address that is connected to must be public, or in a named network. Both are checked again
  for each redirect. No proxy is used, because its address would hide the source's.
- A transfer has a deadline, a limit on the time without data, and a limit on its size.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import IO, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.foundation.checked_http import (
    CHUNK_BYTES,
    SourceRefused,
    TransferLimits,
    bounded,
    fetched,
    is_host_pattern,
    is_network,
    judged_address,
    matches_host,
    port_of,
)
from holdfast.model.artifact import is_url, source_error, source_path

# Size of one artifact. A larger one fails the start.
ARTIFACT_BYTES_MAX = 4 * 1024**3
# Time without data while an artifact is fetched. After that, the start fails and is retried.
ARTIFACT_TIMEOUT_S = 30.0
# Time to fetch one artifact. After that, the start fails and is retried.
ARTIFACT_FETCH_S = 600.0
# Redirects of one source. More fail the start.
ARTIFACT_REDIRECTS_MAX = 5

_IN_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


__all__ = ["ArtifactSources", "SourceRefused", "open_source"]


class ArtifactSources(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `artifacts` of an agent's configuration. Nothing is allowed that is not named here.

    `hosts`: `example.com`, `*.example.com` or `*`, with `:port` unless it is the scheme's own port. `networks`: private
    or loopback networks that a host may resolve to, such as `10.1.0.0/16`. `directories`: for `file:` sources.
    """

    schemes: tuple[Literal["http", "https"], ...] = ("https",)
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

    def error(self) -> str:
        """What is wrong with the configuration; empty if nothing is."""
        for host in self.hosts:
            if not is_host_pattern(host):
                return f"artifacts.hosts: {host} is not a host (expected one such as example.com or *.example.com:8080)"
        for network in self.networks:
            if not is_network(network):
                return f"artifacts.networks: {network} is not a network (expected one such as 10.1.0.0/16)"
        for directory in self.directories:
            if not directory.startswith("/") or ".." in directory.split("/"):
                return f"artifacts.directories: {directory} is not an absolute path"
        return ""

    def url_refusal(self, url: str) -> str:
        """Why the URL may not be fetched; empty if it may, as far as its text shows."""
        if wrong := source_error(url):
            return wrong
        if not is_url(url):
            return "a redirect to something other than http: or https:"
        parts = urlsplit(url)
        if parts.scheme not in self.schemes:
            return f"scheme {parts.scheme} is not allowed on this node; next: add it to artifacts.schemes"
        host, port = (parts.hostname or "").rstrip("."), port_of(parts)
        if not any(matches_host(allowed, host, port, parts.scheme) for allowed in self.hosts):
            return f"host {host}:{port} is not allowed on this node; next: add it to artifacts.hosts"
        return ""

    def address_refusal(self, text: str) -> str:
        """Why this address may not be connected to; empty if it may."""
        address, allowed = judged_address(text, self.networks)
        if allowed:
            return ""
        return f"address {address} is not public; next: add its network to artifacts.networks"


def _limits() -> TransferLimits:
    return TransferLimits(ARTIFACT_BYTES_MAX, ARTIFACT_TIMEOUT_S, ARTIFACT_FETCH_S, ARTIFACT_REDIRECTS_MAX)


def open_source(allowed: ArtifactSources, source: str) -> contextlib.AbstractContextManager[Iterator[bytes]]:
    """The content of a source, in chunks. Raises SourceRefused, also while it is read."""
    if wrong := source_error(source):
        raise SourceRefused(wrong)
    if is_url(source):
        return fetched(allowed, source, _limits())
    return _file_below(allowed, source_path(source))


# --- files -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _file_below(allowed: ArtifactSources, path: str) -> Iterator[Iterator[bytes]]:
    with _opened(allowed, path) as source:
        yield bounded(iter(lambda: source.read(CHUNK_BYTES), b""), ARTIFACT_BYTES_MAX)


def _opened(allowed: ArtifactSources, path: str) -> IO[bytes]:
    """Opens a regular file below a named directory. Raises SourceRefused."""
    wanted = [part for part in path.split("/") if part not in ("", ".")]
    for directory in allowed.directories:
        root = [part for part in directory.split("/") if part not in ("", ".")]
        if len(wanted) > len(root) and wanted[: len(root)] == root and ".." not in wanted:
            try:
                return _walk(directory, wanted[len(root) :])
            except OSError as error:
                raise SourceRefused(error.strerror or str(error)) from error
    raise SourceRefused("its directory is not allowed on this node; next: add it to artifacts.directories")


def _walk(directory: str, parts: list[str]) -> IO[bytes]:
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in parts[:-1]:
        try:
            inner = os.open(name, _IN_DIRECTORY | os.O_DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    try:
        found = os.open(parts[-1], _IN_DIRECTORY | os.O_NONBLOCK, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise SourceRefused("not a regular file")
    return os.fdopen(found, "rb")
