"""shop worker: writes invoices to its scratch volume, from orders that it reads from the API.

The volume is empty at every start and removed with the task, so an invoice that must be kept belongs elsewhere.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

from holdfast.samples.shop_dns import NoAnswer, fetch
from holdfast.samples.web import log_line

INVOICES_MAX = 100
EVERY_S = float(os.environ.get("WORKER_EVERY_SECONDS") or 2)


def main() -> int:
    folder = Path(os.environ["HOLDFAST_VOLUME_INVOICES"]) / "done"
    tenant = os.environ["HOLDFAST_TENANT"]
    for number in itertools.count(1):
        try:
            order = fetch("api", tenant, f"/orders/{number}")
        except NoAnswer as error:
            log_line(f"order {number} is skipped: {error}")
        else:
            (folder / f"{number}.json").write_text(json.dumps(order))
            (folder / f"{number - INVOICES_MAX}.json").unlink(missing_ok=True)
            log_line(f"invoice {number}: {order['product']} {order['total']} {order['currency']} cents")
        time.sleep(EVERY_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
