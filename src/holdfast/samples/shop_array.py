"""shop array: one task of a job array. It handles the products whose number fits its index.

`HOLDFAST_INDEX` is the index; `SHOP_PARTS` is the number of tasks, the array's `completions`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from holdfast.samples.web import log_line


def main() -> int:
    index, parts = int(os.environ["HOLDFAST_INDEX"]), int(os.environ["SHOP_PARTS"])
    products = sorted(json.loads(Path("catalog.json").read_text()))
    own = products[index::parts]
    log_line(f"index {index} of {parts}: {', '.join(own) or 'no products'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
