"""Checks shared by kinds. A check yields every violated rule, not only the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from holdfast.model import limits
from holdfast.model.errors import Cause
from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI, Amount, BadQuantity, parse_amount

# Label pairs cached as valid. The same labels are on every replica of a workload, so each pair is checked once.
VALID_LABELS_CACHED_MAX = 16_384

Causes = Iterator[Cause]

T = TypeVar("T")
_encoder = msgspec.json.Encoder()

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
# Length of an RFC 1123 subdomain, such as an object name. A longer one is refused.
MAX_NAME = 253
# Length of an RFC 1123 label and of a label value. A longer one is refused.
MAX_LABEL = 63
# Size of all annotations of an object. More are refused. The same limit as in Kubernetes.
MAX_ANNOTATION_BYTES = 256 * 1024


def required(field: str, hint: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value{': ' + hint if hint else ''}")


def invalid(field: str, value: object, rule: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {rule}")


def unsupported(field: str, value: object, choices: Iterable[str]) -> Cause:
    listed = ", ".join(f'"{c}"' for c in choices)
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {listed}")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 120 else text[:117] + '..."'


def check_dns_label(field: str, value: str) -> Causes:
    """One RFC 1123 label, as for names of tenants, regions and zones."""
    if len(value) > MAX_LABEL:
        yield too_long(field, MAX_LABEL)
    elif not _LABEL.fullmatch(value):
        yield invalid(
            field, value, "must be lower-case letters, digits or '-', starting and ending with a letter or digit"
        )


def check_subdomain(field: str, value: str) -> Causes:
    """An RFC 1123 subdomain: labels joined by dots."""
    if len(value) > MAX_NAME:
        yield too_long(field, MAX_NAME)
    elif not _SUBDOMAIN.fullmatch(value):
        yield invalid(
            field,
            value,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character",
        )


def check_path_segment(field: str, value: str) -> Causes:
    """A name that may contain more than a subdomain, such as `holdfast:viewer`, and is one segment of a path."""
    if len(value) > MAX_NAME:
        yield too_long(field, MAX_NAME)
    elif value in (".", "..") or "/" in value or "%" in value or has_control_characters(value) or " " in value:
        yield invalid(field, value, "must be one path segment: without '/', '%' and spaces, and not '.' or '..'")


def has_control_characters(value: str) -> bool:
    """Whether the text has control characters, such as NUL and newline, which separate fields in files and requests."""
    return any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value)


def check_label_key(field: str, key: str) -> Causes:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > MAX_NAME or not all(_LABEL.fullmatch(p) for p in prefix.split("."))):
        yield invalid(field, key, "the part before '/' must be an RFC 1123 subdomain")
    if len(name) > MAX_LABEL or not _QUALIFIED.fullmatch(name):
        yield invalid(
            field,
            key,
            "must be at most 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit",
        )


@lru_cache(VALID_LABELS_CACHED_MAX)
def _is_valid_label(key: str, value: str) -> bool:
    """Cached, because every replica of a workload has the same labels."""
    return not any(_check_label("", key, value))


def check_labels(field: str, labels: Mapping[str, str]) -> Causes:
    for key, value in labels.items():
        if not _is_valid_label(key, value):
            yield from _check_label(field, key, value)


def _check_label(field: str, key: str, value: str) -> Causes:
    yield from check_label_key(field, key)
    if len(value) > MAX_LABEL or (value and not _QUALIFIED.fullmatch(value)):
        yield invalid(f"{field}.{key}", value, "a label value is at most 63 letters, digits, '-', '_' or '.'")


def check_annotations(field: str, annotations: Mapping[str, str]) -> Causes:
    for key in annotations:
        yield from check_label_key(field, key.lower())
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > MAX_ANNOTATION_BYTES:
        yield too_long(field, MAX_ANNOTATION_BYTES)


def check_resources(field: str, values: Mapping[str, Amount], *, device_rules: bool = True) -> Causes:
    """A resource list. A GPU request is a number of whole devices, or a share of one."""
    for name, value in values.items():
        path = f"{field}.{name}"
        if len(name) > MAX_LABEL or not _QUALIFIED.fullmatch(name.rpartition("/")[2] or "!"):
            yield invalid(path, name, "must be a resource name, such as cpu or example.com/licenses")
            continue
        try:
            amount = parse_amount(name, value)
        except BadQuantity as wrong:
            yield Cause(path, "FieldValueInvalid", f"Invalid value: {wrong}")
            continue
        if device_rules and name == GPU and amount > WHOLE_GPU_MILLI and amount % WHOLE_GPU_MILLI:
            yield invalid(path, value, "must be a whole number of GPUs, or less than one")


def check_range(field: str, value: int | float, low: float, high: float) -> Causes:
    if not low <= value <= high:
        yield invalid(field, value, f"must be between {low:g} and {high:g}")


def check_unique(field: str, values: Iterable[str]) -> Causes:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield duplicate(f"{field}[{index}]", value)
        seen.add(value)


# Bytes of JSON of the parts that are cached, per type of part. At the bound, the parts that were not used since it was
# last reached are dropped, so many large templates cost no more memory.
SHARED_PARTS_BYTES = 2 * 1024 * 1024


class ValidParts:
    """Caches the parts of objects that passed validation, by their JSON: a part that many objects have is validated
    once."""

    def __init__(self) -> None:
        self._valid: set[bytes] = set()
        self._bytes = 0

    def causes(self, part: T, validate: Callable[[T], Causes]) -> Iterable[Cause]:
        """The findings of a validation that depends on nothing but the part."""
        value = _encoder.encode(part)
        if value in self._valid:
            return ()
        found = tuple(validate(part))
        if not found:
            if len(self._valid) >= limits.SHARED_PARTS_CACHED or self._bytes >= SHARED_PARTS_BYTES:
                self._valid.clear()
                self._bytes = 0
            self._valid.add(value)
            self._bytes += len(value)
        return found
