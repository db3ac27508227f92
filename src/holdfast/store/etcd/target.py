"""Address and credentials of an etcd cluster, as given on the command line. Opens no connection."""

from __future__ import annotations

import msgspec

from holdfast.model import limits


class EtcdTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints are `http://HOST:PORT`, or `https://…` with TLS."""

    endpoints: tuple[str, ...]
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""
    operations: int = limits.ETCD_TXN_OPERATIONS
