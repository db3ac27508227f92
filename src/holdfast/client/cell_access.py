"""Access to a remote platform through a kubeconfig.

The global cell lists the regions. A region is reached with the context of its name, or at its `spec.endpoint` with the
credentials of the global cell. Keys embedded in the kubeconfig are written to a private temporary directory, because
the TLS library needs files, and deleted when the command ends. This module never writes to the platform.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import shutil
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.server_urls import split_urls
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode

GLOBAL = "global"
SERVERS_EXTENSION = "holdfast.dev/servers"
"""Extension of a kubeconfig's cluster: the URLs of all servers of the cell, for clients that use more than one."""
KUBECONFIGS_CACHED = 16
"""Parsed kubeconfigs kept per process. A program that connects to more parses them again."""


class CellAccess(msgspec.Struct, frozen=True):
    """URL and credentials of one cell. Without `ca` the system's CAs are trusted. `others` are the URLs of the cell's
    other servers."""

    url: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str = ""
    others: tuple[str, ...] = ()

    def api(self, name: str, *, token: str = "", timeout_s: float = 5.0) -> CellApi:
        urls = ",".join((self.url, *self.others))
        if token:
            return CellApi(urls, name=name, ca=self.ca, token=token, timeout_s=timeout_s)
        return CellApi(urls, name=name, ca=self.ca, cert=self.cert, key=self.key, token=self.token, timeout_s=timeout_s)


def contexts(path: Path) -> dict[str, CellAccess]:
    """The usable contexts of the file by name. The context of the global cell is returned as `global`.

    The file is read each time, so that a program notices new credentials.
    """
    return _contexts_of(path, _text(path))


@lru_cache(maxsize=KUBECONFIGS_CACHED)
def _contexts_of(path: Path, text: str) -> dict[str, CellAccess]:
    data = _parse(path, text)
    clusters = {c["name"]: c.get("cluster") or {} for c in data.get("clusters") or ()}
    users = {u["name"]: u.get("user") or {} for u in data.get("users") or ()}
    found: dict[str, CellAccess] = {}
    for entry in data.get("contexts") or ():
        context = entry.get("context") or {}
        cluster, user = clusters.get(context.get("cluster")), users.get(context.get("user"), {})
        if cluster is not None and cluster.get("server"):
            found[entry["name"]] = _access(path, cluster, user)
    if GLOBAL not in found:
        current = data.get("current-context", "")
        if current not in found:
            raise CommandError(
                f"{path}: no context for the global cell (expected a context {GLOBAL} or a current context, found "
                f"{', '.join(found) or 'none'})",
                next_step=f"kubectl config --kubeconfig {path} use-context NAME",
                code=ExitCode.USAGE,
            )
        found[GLOBAL] = found[current]
    return found


def access_of(path: Path, cell: str, endpoint: str = "") -> CellAccess:
    known = contexts(path)
    if cell in known:
        return known[cell]
    if not endpoint:
        raise CommandError(f"{path}: no context {cell} (found {', '.join(known)})", code=ExitCode.USAGE)
    first, *others = split_urls(endpoint)
    return msgspec.structs.replace(known[GLOBAL], url=first, others=tuple(others))


def region_url(spec: dict[str, Any]) -> str:
    """The servers of a region's cell by its Region's spec, separated by commas; empty before it has joined."""
    return ",".join(spec.get("endpoints") or ()) or str(spec.get("endpoint", ""))


def region_objects(path: Path) -> list[dict[str, Any]]:
    """The regions that the global cell lists. While it is unreachable, the regions with a context in the kubeconfig."""
    api = access_of(path, GLOBAL).api(GLOBAL)
    try:
        return api.list("regions")
    except CommandError as stop:
        others = [name for name, access in contexts(path).items() if access.url != api.url]
        if stop.code is not ExitCode.UNREACHABLE or not others:
            raise
        return [{"metadata": {"name": name}, "spec": {}} for name in others]
    finally:
        api.close()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise CommandError(f"{path}: not readable ({' '.join(str(wrong).split())})", code=ExitCode.USAGE) from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as wrong:
        raise CommandError(f"{path}: not readable ({' '.join(str(wrong).split())})", code=ExitCode.USAGE) from None
    except RecursionError:
        raise CommandError(f"{path}: not readable (nested too deeply)", code=ExitCode.USAGE) from None
    if not isinstance(data, dict) or data.get("kind") != "Config":
        raise CommandError(
            f"{path}: not a kubeconfig (expected kind Config)",
            next_step="--state DIR with a platform's directory, or --state FILE with a kubeconfig",
            code=ExitCode.USAGE,
        )
    return data


def _access(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> CellAccess:
    token = user.get("token", "")
    if not token and user.get("tokenFile"):
        token = (path.parent / user["tokenFile"]).read_text().strip()
    others: tuple[str, ...] = ()
    for entry in cluster.get("extensions") or ():
        if entry.get("name") == SERVERS_EXTENSION:
            others = tuple(url for url in (entry.get("extension") or {}).get("urls", ()) if url != cluster["server"])
    return CellAccess(
        url=cluster["server"],
        others=others,
        ca=_file(path, cluster, "certificate-authority"),
        cert=_file(path, user, "client-certificate"),
        key=_file(path, user, "client-key"),
        token=token,
    )


def _file(path: Path, entry: dict[str, Any], name: str) -> Path | None:
    """Path of a certificate or key, relative to the kubeconfig as for kubectl. Embedded data is written to a file."""
    if embedded := entry.get(f"{name}-data"):
        try:
            return _write_temporary(base64.b64decode(embedded, validate=True))
        except (binascii.Error, ValueError) as wrong:
            raise CommandError(f"{path}: {name}-data is not valid base64 ({wrong})", code=ExitCode.USAGE) from None
    return path.parent / entry[name] if entry.get(name) else None


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="holdfast-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def _write_temporary(data: bytes) -> Path:
    handle, name = tempfile.mkstemp(dir=_folder(), suffix=".pem")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return Path(name)
