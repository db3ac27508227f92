"""Label and field selectors: parsing and matching.

The selectable fields of a kind come from one table, built from `model.indexes` and the rows below. An unknown field is
refused, never ignored: clients rely on a selector doing what it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.core import Event, Lease, Namespace
from holdfast.model.core_views import CoreNode
from holdfast.model.errors import BadRequest
from holdfast.model.indexes import INDEXES
from holdfast.model.kinds import Kind
from holdfast.model.meta import Object
from holdfast.model.pod_view import Pod
from holdfast.model.replica import Replica
from holdfast.model.validation import check_label_key

# Length of a label or field selector. A longer one is refused.
MAX_SELECTOR_BYTES = 4096
# Terms of a selector. More are refused: every object of a list is tested against every term.
MAX_SELECTOR_TERMS = 64

Getter = Callable[[Any], str]


def _path(dotted: str) -> Getter:
    names = tuple(dotted.split("."))

    def get(item: Any) -> str:
        for name in names:
            item = getattr(item, name)
        return str(item)

    return get


# kind → field label → getter, in addition to metadata.name, metadata.namespace and the indexes of the kind.
FIELD_LABELS: dict[type[Any], dict[str, Getter]] = {
    Event: {
        "involvedObject.kind": _path("involved_object.kind"),
        "involvedObject.namespace": _path("involved_object.namespace"),
        "involvedObject.name": _path("involved_object.name"),
        "involvedObject.uid": _path("involved_object.uid"),
        "involvedObject.apiVersion": _path("involved_object.api_version"),
        "involvedObject.resourceVersion": _path("involved_object.resource_version"),
        "involvedObject.fieldPath": _path("involved_object.field_path"),
        "reason": _path("reason"),
        "type": _path("type"),
        "source": _path("source.component"),
        "reportingComponent": _path("reporting_component"),
    },
    Namespace: {"status.phase": _path("status.phase")},
    Pod: {"spec.nodeName": _path("spec.node_name"), "status.phase": _path("status.phase")},
    CoreNode: {"spec.unschedulable": lambda item: str(item.spec.unschedulable).lower()},
    Lease: {"spec.holderIdentity": _path("spec.holder_identity")},
    Replica: {"status.placement.node": _path("status.placement.node"), "spec.revision": _path("spec.revision")},
}
_SPEC_INDEXES = {"workload": "workload", "assignment": "assignment", "node": "node", "region": "region"}


def field_labels(type_: type[Any]) -> dict[str, Getter]:
    """Every field label of a kind. Index names (`node`, `workload`) are labels too, with the values of the index."""
    found: dict[str, Getter] = {
        "metadata.name": lambda item: str(item.metadata.name),
        "metadata.namespace": lambda item: str(item.metadata.namespace),
    }
    for name, index in INDEXES.get(type_, {}).items():
        found[name] = lambda item, index=index: next(iter(index(item)), "")  # type: ignore[misc]
        if name in _SPEC_INDEXES and type_ is not Replica:
            found[f"spec.{name}"] = _path(f"spec.{name}")
    if type_ is Replica:
        found["spec.workload"] = _path("spec.workload")
        found["spec.assignment"] = _path("spec.assignment")
    return {**found, **FIELD_LABELS.get(type_, {})}


class FieldTerm(msgspec.Struct, frozen=True):
    """`is_prefix`: the value ends with `*` and matches every value with that prefix. Only for indexed fields."""

    label: str
    value: str
    equal: bool
    get: Getter
    is_prefix: bool = False

    def matches(self, item: Object) -> bool:
        found = self.get(item)
        same = found.startswith(self.value[:-1]) if self.is_prefix else found == self.value
        return same is self.equal


class LabelTerm(msgspec.Struct, frozen=True):
    """`operator` is one of in, notin, exists, absent."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: dict[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case "exists":
                return value is not None
        return value is None


class Selection(msgspec.Struct, frozen=True):
    """The selection of a list or watch. `owner` selects by the owner's uid, for garbage collection."""

    labels: tuple[LabelTerm, ...] = ()
    fields: tuple[FieldTerm, ...] = ()
    owner: str = ""

    @property
    def matches_all(self) -> bool:
        return not self.labels and not self.fields and not self.owner

    def matches(self, item: Object) -> bool:
        if self.owner and all(ref.uid != self.owner for ref in item.metadata.owner_references):
            return False
        labels = item.metadata.labels
        return all(t.matches(labels) for t in self.labels) and all(t.matches(item) for t in self.fields)

    def indexed_terms(self, type_: type[Any]) -> dict[str, str]:
        """The terms that the store's indexes can answer. The others are filtered afterwards."""
        known = INDEXES.get(type_, {})
        found = {"owner": self.owner} if self.owner else {}
        for term in self.fields:
            if term.equal and (term.label in known or term.label == "metadata.name"):
                found.setdefault(term.label, term.value)
        return found


ALL_OBJECTS = Selection()


def parse(kind: Kind, label_selector: str, field_selector: str) -> Selection:
    if not label_selector and not field_selector:
        return ALL_OBJECTS
    if max(len(label_selector), len(field_selector)) > MAX_SELECTOR_BYTES:
        raise BadRequest(f"selector: too long (limit {MAX_SELECTOR_BYTES} bytes)")
    fields, owner = _fields(kind, field_selector)
    return Selection(labels=parse_labels(label_selector), fields=fields, owner=owner)


def _fields(kind: Kind, text: str) -> tuple[tuple[FieldTerm, ...], str]:
    terms: list[FieldTerm] = []
    owner = ""
    known = field_labels(kind.type)
    for part in filter(None, (p.strip() for p in re.split(r"(?<!\\),", text))):
        match = re.fullmatch(r"([^=!]+?)\s*(==|!=|=)\s*(.*)", part, re.DOTALL)
        if match is None:
            raise BadRequest(f'invalid field selector "{part}" (expected field=value or field!=value)')
        label, operator, value = match.groups()
        value = re.sub(r"\\([\\,=])", r"\1", value)
        if label == "owner" and operator != "!=":
            owner = value
        elif label not in known:
            raise BadRequest(f"field label not supported: {label}")
        else:
            begins = value.endswith("*") and label in INDEXES.get(kind.type, {})
            terms.append(FieldTerm(label, value, operator != "!=", known[label], begins))
    if len(terms) > MAX_SELECTOR_TERMS:
        raise BadRequest(f"field selector: too many terms (limit {MAX_SELECTOR_TERMS}, found {len(terms)})")
    return tuple(terms), owner


_TOKEN = re.compile(r"\s*(?:(==|!=|=|\(|\)|,|!)|([^\s=!(),]+))")


def parse_labels(text: str) -> tuple[LabelTerm, ...]:
    """`k=v`, `k==v`, `k!=v`, `k in (a,b)`, `k notin (a)`, `k`, `!k`, joined by commas."""
    tokens = _tokens(text)
    terms: list[LabelTerm] = []
    at = 0
    while at < len(tokens):
        if tokens[at] == ",":
            at += 1
            continue
        term, at = _term(tokens, at, text)
        terms.append(term)
        if at < len(tokens) and tokens[at] != ",":
            raise _bad(text, f"found {tokens[at]!r}, expected ','")
    if len(terms) > MAX_SELECTOR_TERMS:
        raise BadRequest(f"label selector: too many terms (limit {MAX_SELECTOR_TERMS}, found {len(terms)})")
    return tuple(terms)


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _bad(text, f"unexpected {text[at : at + 10]!r}")
        found.append(match.group(1) or match.group(2))
        at = match.end()
    return found


def _term(tokens: list[str], at: int, text: str) -> tuple[LabelTerm, int]:
    negated = tokens[at] == "!"
    at += negated
    if at >= len(tokens):
        raise _bad(text, "the key is missing at the end")
    key = tokens[at]
    for cause in check_label_key("key", key):
        raise _bad(text, f"{key!r}: {cause.message}")
    at += 1
    following = tokens[at] if at < len(tokens) else ","
    if negated:
        return LabelTerm(key, "absent"), at
    if following in ("=", "==", "!="):
        value = tokens[at + 1] if at + 1 < len(tokens) and tokens[at + 1] != "," else ""
        if value in ("(", ")", "!", "=", "==", "!="):
            raise _bad(text, f"found {value!r}, expected a value")
        at += 2 if value else 1
        return LabelTerm(key, "notin" if following == "!=" else "in", frozenset({value})), at
    if following in ("in", "notin"):
        return _set_term(tokens, at, key, text)
    return LabelTerm(key, "exists"), at


def _set_term(tokens: list[str], at: int, key: str, text: str) -> tuple[LabelTerm, int]:
    operator = tokens[at]
    if at + 1 >= len(tokens) or tokens[at + 1] != "(":
        raise _bad(text, f"{operator!r} needs a list in parentheses")
    end = at + 2
    values: set[str] = set()
    last = ","
    while end < len(tokens) and tokens[end] != ")":
        token = tokens[end]
        if token == "," and last == ",":
            values.add("")
        elif token != "," and last != ",":
            raise _bad(text, f"found {token!r}, expected ',' or ')'")
        elif token in ("(", "!", "=", "==", "!="):
            raise _bad(text, f"found {token!r} in a list of values")
        elif token != ",":
            values.add(token)
        last = token
        end += 1
    if end >= len(tokens):
        raise _bad(text, "')' is missing")
    if last == ",":
        values.add("")
    return LabelTerm(key, operator, frozenset(values)), end + 1


def _bad(text: str, why: str) -> BadRequest:
    return BadRequest(f"unable to parse label selector {text[:200]!r}: {why}")
