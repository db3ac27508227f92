"""shop api: products and orders, from a ConfigMap and a Secret.

- `SHOP_GREETING` and `SHOP_CURRENCY` are keys of a ConfigMap, read at the start.
- `catalog.json` is a file of a ConfigMap. It is read for each request, so that a changed price needs no restart.
- `receipt-key` is a file of a Secret. Each receipt is signed with it, and every replica in every region gives the same
  receipt for the same order. The key itself is never part of a response or of the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.samples.web import CannotAnswer, Sample

CATALOG, KEY = Path("catalog.json"), Path("receipt-key")


def receipt(key: bytes, order: int, product: str, total: int) -> str:
    return hmac.new(key, f"{order} {product} {total}".encode(), hashlib.sha256).hexdigest()[:16]


def catalog() -> dict[str, int]:
    """Product → price in cents."""
    try:
        prices: dict[str, int] = json.loads(CATALOG.read_text())
    except (OSError, ValueError) as error:
        raise CannotAnswer(f"{CATALOG}: {error}") from error
    if not prices:
        raise CannotAnswer(f"{CATALOG}: no products")
    return prices


def answer(path: str) -> dict[str, Any] | None:
    shop = {"currency": os.environ.get("SHOP_CURRENCY", "EUR")}
    if path == "/":
        return {**shop, "greeting": os.environ.get("SHOP_GREETING", ""), "products": catalog()}
    number = path.removeprefix("/orders/")
    if not path.startswith("/orders/") or not number.isdecimal() or len(number) > 9:
        return None
    order, prices = int(number), catalog()
    product = sorted(prices)[order % len(prices)]
    try:
        signed = receipt(KEY.read_bytes().strip(), order, product, prices[product])
    except OSError as error:
        raise CannotAnswer(f"{KEY}: {error.strerror}") from error
    return {**shop, "order": order, "product": product, "total": prices[product], "receipt": signed}


if __name__ == "__main__":
    sys.exit(Sample("shop-api", warm_up_s=0.2, answer=answer).run())
