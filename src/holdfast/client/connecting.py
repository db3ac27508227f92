"""Connects to a platform: by its directory, by a kubeconfig, or by URL and credentials."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.client import cell_access
from holdfast.client.calls import fault_of_command
from holdfast.client.cell_access import GLOBAL, CellAccess
from holdfast.client.holdfast import CALL_S, Holdfast
from holdfast.client.holdfast_async import AsyncHoldfast
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.errors import BadRequest

STATE_VARIABLE, DEFAULT_STATE = "HOLDFAST_STATE", ".holdfast"


def connect(
    target: str | Path = "",
    *,
    url: str = "",
    token: str = "",
    ca: str | Path = "",
    cert: str | Path = "",
    key: str | Path = "",
    timeout_s: float = CALL_S,
) -> Holdfast:
    """A client of the global cell.

    `target` is the directory of a local platform, or a kubeconfig; without it and without `url`, it is the variable
    HOLDFAST_STATE, else `.holdfast`. With `url`, the credentials are `token`, or `cert` and `key`; `ca` is the file of
    the CA to trust, else the system's CAs are trusted.
    """
    access, kubeconfig = _access(target, url, token, (ca, cert, key))
    return Holdfast(access, kubeconfig=kubeconfig, timeout_s=timeout_s)


def connect_async(
    target: str | Path = "",
    *,
    url: str = "",
    token: str = "",
    ca: str | Path = "",
    cert: str | Path = "",
    key: str | Path = "",
    timeout_s: float = CALL_S,
) -> AsyncHoldfast:
    """The same for asyncio. Nothing is sent before the first call."""
    access, kubeconfig = _access(target, url, token, (ca, cert, key))
    return AsyncHoldfast(access, kubeconfig=kubeconfig, timeout_s=timeout_s)


def _access(
    target: str | Path, url: str, token: str, files: tuple[str | Path, str | Path, str | Path]
) -> tuple[CellAccess, Path | None]:
    if url:
        if target:
            raise BadRequest(f"connect: both {target} and {url} given; next: pass a target or a url")
        if not url.startswith("https://"):
            raise BadRequest(f"{url}: not an https URL; next: pass url=https://HOST:PORT")
        ca, cert, key = (Path(file) if file else None for file in files)
        if (cert is None) != (key is None):
            raise BadRequest(f"{url}: cert and key belong together (one is missing); next: pass both")
        return CellAccess(url, ca, cert, key, token), None
    path = Path(target or os.environ.get(STATE_VARIABLE, "") or DEFAULT_STATE)
    kubeconfig = path / "kubeconfig" if path.is_dir() else path
    if not kubeconfig.exists():
        text = f"platform {path}: not found (expected a directory with a kubeconfig, or a kubeconfig)"
        raise BadRequest(f"{text}; next: holdfast up, or holdfast kubeconfig")
    try:
        access = cell_access.contexts(kubeconfig)[GLOBAL]
    except CommandError as error:
        raise fault_of_command(error) from error
    if token:
        access = CellAccess(access.url, access.ca, token=token)
    return access, kubeconfig
