"""One-time sign-in links of the console."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.client.sync_api import CellApi

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def console_link(api: CellApi, url: str) -> str:
    """A link that signs in as the caller, once."""
    made = api.request("POST", "/console/api/links")
    return page_url(url, made["path"])


def page_url(url: str, path: str) -> str:
    """A page of the cell at `url`. On this machine it is plain HTTP, without a certificate."""
    base = urlsplit(url)
    scheme = "http" if base.hostname in _LOOPBACK else base.scheme
    return f"{scheme}://{base.netloc}{path}"
