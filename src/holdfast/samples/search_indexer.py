"""search-indexer: a worker that builds an index in memory and reports its progress over HTTP.

`INDEX_MEMORY_MB` (default 32) bounds the index; `INDEX_DOCUMENTS_PER_TICK` (default 50) sets the speed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from holdfast.samples.web import Sample, log_line

INDEX_BYTES_MAX = int(os.environ.get("INDEX_MEMORY_MB") or 32) * 1024 * 1024
DOCUMENTS_PER_TICK = int(os.environ.get("INDEX_DOCUMENTS_PER_TICK") or 50)
DOCUMENT_BYTES = 4096
LOG_EVERY_DOCUMENTS = 1000


class Index:
    """A bounded index: when it is full, new documents replace the oldest."""

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.indexed = 0

    @property
    def bytes(self) -> int:
        return len(self.documents) * DOCUMENT_BYTES

    def work(self) -> None:
        for _ in range(DOCUMENTS_PER_TICK):
            document = (b"%016d" % self.indexed) * (DOCUMENT_BYTES // 16)
            if self.bytes >= INDEX_BYTES_MAX:
                self.documents[self.indexed % len(self.documents)] = document
            else:
                self.documents.append(document)
            self.indexed += 1
        if self.indexed % LOG_EVERY_DOCUMENTS < DOCUMENTS_PER_TICK:
            log_line(f"search-indexer has indexed {self.indexed} documents and holds {self.bytes // 1048576} MiB")

    def answer(self, path: str) -> dict[str, Any] | None:
        return {"indexed": self.indexed, "bytes": self.bytes} if path == "/" else None


if __name__ == "__main__":
    index = Index()
    sys.exit(Sample("search-indexer", warm_up_s=0.2, answer=index.answer, tick=index.work).run())
