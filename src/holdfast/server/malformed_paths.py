"""Paths that no client of the API sends, such as `/namespaces/shop/../other`: refused for every caller, and recorded.

A path is used as it arrives: no dot segment is resolved, and nothing is decoded twice. Such a path therefore names
nothing. It is an attempt to get around the authorization of another path, or an error of a client that should be told.
Pure.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from holdfast.server import status

MALFORMED_PATH = "MalformedPath"
"""Reason in the audit log."""

# Length of a path in the audit log and in an error message. The rest is cut off.
PATH_SHOWN_CHARS_MAX = 200

_SEGMENT = re.compile(r"/(\.{0,2})/|/(\.{1,2})$")
_CHARACTER = re.compile(r"[\\%\x00-\x1f\x7f\ufffd]")


class MalformedPath(status.HttpRefusal):
    """`shown` is the path as text that is safe to print."""

    def __init__(self, path: str, raw: bytes, wrong: str) -> None:
        shown = raw.decode("ascii", "replace") if raw else quote(path, safe="/%:")
        self.shown = shown[:PATH_SHOWN_CHARS_MAX]
        super().__init__(400, "BadRequest", f"path {self.shown}: {wrong}; next: use the path of the object itself")


def check_path(path: str, raw: bytes) -> None:
    """Raises MalformedPath. `path` is decoded once; `raw` is what the client sent, empty if unknown."""
    if (segment := _SEGMENT.search(path)) is not None:
        found = segment[1] or segment[2]
        raise MalformedPath(path, raw, f"has the segment '{found}'" if found else "has an empty segment")
    if _CHARACTER.search(path) is not None:
        raise MalformedPath(path, raw, "has a backslash, a control character, or a character that is encoded twice")
    if b"%" in raw and b"%2f" in raw.lower():
        raise MalformedPath(path, raw, "has an encoded slash")
