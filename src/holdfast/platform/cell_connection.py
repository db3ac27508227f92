"""Connects a command to one cell. It imports no kind and no supervisor, so that short commands start fast."""

from __future__ import annotations

from holdfast.client.sync_api import CellApi
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout, Platform


def connect_cell(layout: Layout, platform: Platform, cell: str, *, token: str = "", timeout_s: float = 5.0) -> CellApi:
    """The API of one cell, as the local operator, as the kubeconfig's user, or with the given token."""
    url = dict(platform.cells)[cell]
    if layout.remote:
        from holdfast.client import cell_access

        return cell_access.access_of(layout.root, cell, url).api(cell, token=token, timeout_s=timeout_s)
    files = Credentials(layout).operator()
    if token:
        return CellApi(url, name=cell, ca=files.ca, token=token, timeout_s=timeout_s)
    return CellApi(url, name=cell, ca=files.ca, cert=files.cert, key=files.key, timeout_s=timeout_s)
