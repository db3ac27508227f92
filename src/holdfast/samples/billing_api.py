"""billing-api: a service that counts invoices in memory."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.samples.web import Sample

_issued = {"invoices": 0}


def answer(path: str) -> dict[str, Any] | None:
    """`/` identifies the replica; `/invoices/new` issues an invoice."""
    if path == "/":
        return dict(_issued)
    if path == "/invoices/new":
        _issued["invoices"] += 1
        return {"invoice": _issued["invoices"]}
    return None


if __name__ == "__main__":
    sys.exit(Sample("billing-api", warm_up_s=0.2, answer=answer).run())
