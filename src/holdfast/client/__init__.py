"""The Python client of Holdfast. The names in `__all__` are public and documented in docs/python.md; the modules of
this package are internal.

    from holdfast.client import connect
    from holdfast.model.workload import Workload

    with connect(".holdfast") as holdfast:
        print(holdfast.get(Workload, "risk-api", "payments").status.summary)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.connecting import connect, connect_async
    from holdfast.client.holdfast import Holdfast
    from holdfast.client.holdfast_async import AsyncHoldfast
    from holdfast.client.watch_cursor import ChangeType, WaitTimedOut, WatchedChange
    from holdfast.model.errors import (
        Ambiguous,
        BadRequest,
        Conflict,
        Expired,
        Fault,
        Forbidden,
        Invalid,
        NotFound,
        Overloaded,
        Unauthorized,
        Unavailable,
    )

__all__ = [
    "Ambiguous",
    "AsyncHoldfast",
    "BadRequest",
    "ChangeType",
    "Conflict",
    "Expired",
    "Fault",
    "Forbidden",
    "Holdfast",
    "Invalid",
    "NotFound",
    "Overloaded",
    "Unauthorized",
    "Unavailable",
    "WaitTimedOut",
    "WatchedChange",
    "connect",
    "connect_async",
]

_HOMES = {
    "connect": "holdfast.client.connecting",
    "connect_async": "holdfast.client.connecting",
    "Holdfast": "holdfast.client.holdfast",
    "AsyncHoldfast": "holdfast.client.holdfast_async",
    "ChangeType": "holdfast.client.watch_cursor",
    "WatchedChange": "holdfast.client.watch_cursor",
    "WaitTimedOut": "holdfast.client.watch_cursor",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use: commands import modules of this package and must start fast."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "holdfast.model.errors")), name)
