"""shop web: the front of the sample shop. It finds the API by its DNS name and shows who answered.

`/` lists the products, `/buy/N` places order N. Both name the replica of this service and the replica of the API.
Without an answer of the API the response is 503.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from holdfast.samples.shop_dns import NoAnswer, fetch
from holdfast.samples.web import CannotAnswer, Sample

API = os.environ.get("SHOP_API") or "api"
TENANT = os.environ.get("HOLDFAST_TENANT") or "shop"


def answer(path: str) -> dict[str, Any] | None:
    number = path.removeprefix("/buy/")
    if path != "/" and not (path.startswith("/buy/") and number.isdecimal() and len(number) < 10):
        return None
    try:
        said = fetch(API, TENANT, "/" if path == "/" else f"/orders/{number}")
    except NoAnswer as error:
        raise CannotAnswer(str(error)) from error
    names = ("greeting", "products", "order", "product", "total", "currency", "receipt")
    shown = {name: said[name] for name in names if name in said}
    return {**shown, "answeredBy": {"region": said.get("region", ""), "replica": said.get("replica", "")}}


if __name__ == "__main__":
    sys.exit(Sample("shop-web", answer=answer).run())
