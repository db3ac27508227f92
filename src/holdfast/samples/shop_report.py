"""shop report: the nightly report of the sample shop. Fails if the API does not answer, so that the run is repeated."""

from __future__ import annotations

import os
import sys

from holdfast.samples.shop_dns import NoAnswer, fetch
from holdfast.samples.web import log_line


def main() -> int:
    try:
        said = fetch("api", os.environ["HOLDFAST_TENANT"], "/")
    except NoAnswer as error:
        log_line(f"no report: {error}")
        return 1
    products = said["products"]
    mean = sum(products.values()) // len(products)
    log_line(f"report: {len(products)} products, mean price {mean} {said['currency']} cents, asked {said['replica']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
