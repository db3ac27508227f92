"""Removes secrets from objects and texts. Pure.

Two rules work together. A field or a pattern that can hold a secret is replaced wherever it stands. Values that were
replaced in objects are remembered, and `scrub` removes them from every other part: a program may log its environment.
"""

from __future__ import annotations

import json
import re
from typing import Any

REDACTED = "[redacted]"
LEFT_OUT_KINDS = frozenset({"Secret", "JoinToken"})
"""Kinds that exist to hold a secret, or its hash. They are not read."""
KNOWN_VALUE_CHARACTERS_MIN = 6
"""A shorter value, such as `true` or `80`, is replaced in its own field only: it stands in too many other places."""
KNOWN_VALUES_MAX = 5_000
"""Each value is searched in every part. With more values, parts without a structure (logs) are left out."""

_VALUE_FIELDS = frozenset({"data", "stringData", "binaryData", "env"})
_SECRET_WORD = r"(?:password|passwd|passphrase|secret|token|api[_-]?key|private[_-]?key|client-key-data)"
_SECRET_FIELD = re.compile(rf"[\w.-]*{_SECRET_WORD}", re.IGNORECASE)
_SECRET_FLAG = re.compile(rf"--?[\w.-]*{_SECRET_WORD}", re.IGNORECASE)
_KEY_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY-----"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A whole key; a key whose end is cut off; the rest of a key whose beginning is cut off.
    (re.compile(rf"-----BEGIN {_KEY_LABEL}.*?(?:-----END {_KEY_LABEL}|\Z)", re.DOTALL), REDACTED),
    (re.compile(rf"(?:[A-Za-z0-9+/=]|\\n|\s)*-----END {_KEY_LABEL}"), REDACTED),
    (re.compile(r"""(authorization["']?\s*[:=]\s*["']?)[^"'\r\n,}]+""", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\bhf_[A-Za-z0-9_-]{16,}"), REDACTED),
    (re.compile(r"\bhfj\.[a-z0-9-]{1,63}\.[A-Za-z0-9_-]{8,}"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), REDACTED),
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^/\s:@\"']{0,200}:[^/\s@\"']{1,200}@", re.IGNORECASE),
        rf"\1{REDACTED}@",
    ),
    (re.compile(rf"""({_SECRET_WORD}\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,}}]+""", re.IGNORECASE), rf"\1{REDACTED}"),
)


class Redaction:
    """One bundle's redaction. Objects go first, so that their values are known when texts are scrubbed."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.replaced = 0

    @property
    def is_overfull(self) -> bool:
        """Whether there are more values than `scrub` searches for."""
        return len(self._known) > KNOWN_VALUES_MAX

    def object(self, item: Any) -> Any:
        """The object with its secret fields replaced. Names of keys and variables stay."""
        if isinstance(item, dict):
            return {key: self._field(key, value) for key, value in item.items()}
        if isinstance(item, list):
            after_flag = [False, *(isinstance(word, str) and bool(_SECRET_FLAG.fullmatch(word)) for word in item)]
            return [
                self._replace(value) if flagged and isinstance(value, str) else self.object(value)
                for flagged, value in zip(after_flag, item, strict=False)
            ]
        return self.text(item) if isinstance(item, str) else item

    def text(self, text: str) -> str:
        """The text without keys, tokens, passwords and Authorization headers."""
        for pattern, put in _PATTERNS:
            text, count = pattern.subn(put, text)
            self.replaced += count
        return text

    def scrub(self, value: Any) -> Any:
        """A text or a JSON value without any value that was replaced in an object. The value stays valid JSON."""
        raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        forms = sorted({form for known in self._known for form in (known, json.dumps(known, ensure_ascii=False)[1:-1])})
        present = sorted((form for form in forms if form in raw), key=len, reverse=True)
        return self._without(value, present) if present else value

    def _without(self, value: Any, present: list[str]) -> Any:
        if isinstance(value, dict):
            return {key: self._without(inner, present) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._without(inner, present) for inner in value]
        if isinstance(value, str):
            for form in present:
                if form in value:
                    value, self.replaced = value.replace(form, REDACTED), self.replaced + 1
        return value

    def _field(self, name: str, value: Any) -> Any:
        if name in _VALUE_FIELDS:
            return self._values(value)
        if name.endswith("last-applied-configuration"):
            # The whole object as written, which may hold any of the other fields.
            self.replaced += 1
            return REDACTED
        if isinstance(value, str) and value and _SECRET_FIELD.fullmatch(name):
            return self._replace(value)
        return self.object(value)

    def _values(self, value: Any) -> Any:
        """Every text below, replaced; names of keys, and `name` of a list entry, stay."""
        if isinstance(value, dict):
            return {key: inner if key == "name" else self._values(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._values(inner) for inner in value]
        return value if value is None else self._replace(str(value))

    def _replace(self, value: str) -> str:
        self.replaced += 1
        if len(value) >= KNOWN_VALUE_CHARACTERS_MIN:
            self._known.add(value)
        return REDACTED
