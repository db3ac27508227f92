"""The format of a cell's state directory. A change of its files needs a row here.

Objects in the store are not part of it: they are read by any adjacent release (decision 0020).
"""

from __future__ import annotations

from holdfast.foundation.state_format import StateFormat

CELL_STATE = StateFormat("cell", files=("*.json", "*.journal", "store.sqlite", "store.sqlite-wal", "store.sqlite.mark"))
