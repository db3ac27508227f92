"""Address and credentials of an etcd cluster, as given on the command line. Opens no connection."""

from __future__ import annotations

import msgspec

# Operations per etcd transaction, unless the target says otherwise. etcd's default for --max-txn-ops.
ETCD_TXN_OPERATIONS = 128


class EtcdTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints are `http://HOST:PORT`, or `https://…` with TLS."""

    endpoints: tuple[str, ...]
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""
    operations: int = ETCD_TXN_OPERATIONS
