"""Turns writes into one transaction: reads the published state, applies each write, and checks every rule.

Synchronous and without side effects. All reads of one plan see one state, and each object read is compared in the
transaction, so a plan commits against exactly the state it was checked against, or not at all. Several writes to one
object become one stored value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.client.contract import FencingToken
from holdfast.foundation.ports import Ports
from holdfast.gate import admission, audit, event_scope, faults, scope, stamp
from holdfast.gate.metadata import validate_metadata, validate_observed, validate_size
from holdfast.gate.ownership import unowned_changes
from holdfast.gate.requesters import with_requester
from holdfast.gate.sealing import Sealer
from holdfast.model import codec
from holdfast.model.errors import BadRequest, Cause, Refused, StaleToken
from holdfast.model.kinds import ALL, BY_NAME, BY_TYPE, Kind
from holdfast.model.meta import Key, Object
from holdfast.model.ownership import LINK, deleters, is_mirrored_here, owners
from holdfast.model.principal import Principal
from holdfast.model.replica import Replica
from holdfast.model.secret import Secret
from holdfast.model.times import seconds_text
from holdfast.model.validation import invalid, unsupported
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write
from holdfast.store.contract import Append, Compare, Put, Remove, Txn
from holdfast.store.objects import Objects

# Attempts to find a free name for `generateName`. After that, the create fails with AlreadyExists.
NAME_ATTEMPTS = 8

# Kinds allowed in namespaces without a tenant: elections and Events exist before and after tenants.
_ANY_NAMESPACE = frozenset({"Event", "Lease"})
_ASSIGNMENT = BY_NAME["Assignment"]
_TENANT = BY_NAME["Tenant"]
_TERM = BY_NAME["Term"]
_MIRRORED = {
    cell_is_global: frozenset(
        k.name for k in ALL if is_mirrored_here(k.name, "global" if cell_is_global else "a-region")
    )
    for cell_is_global in (True, False)
}


class StagedWrite(msgspec.Struct, gc=False):
    """One object of the plan, as stored and as it will be; `after` None means that it is removed."""

    kind: Kind
    key: str
    before: Object | None
    after: Object | None
    value: bytes = b""
    ops: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.after is not self.before


class WritePlan:
    """One attempt at a commit. Raises the first fault; collects all warnings."""

    def __init__(self, cell: str, objects: Objects, ports: Ports, who: Principal, sealer: Sealer) -> None:
        self.warnings: list[str] = []
        self._cell = cell
        self._objects = objects
        self._ports = ports
        self._who = who
        self._sealer = sealer
        self._now = seconds_text(ports.clock.now())
        self._staged: dict[str, StagedWrite] = {}
        self._dependencies: dict[tuple[Kind, str, str], int] = {}
        """(kind, namespace, name) → revision of objects that the writes depend on without changing them: tenants, the
        election term, and the Assignment of an ordinal."""
        self._order: list[str] = []

    # Interface of the gate

    @property
    def staged(self) -> Iterable[StagedWrite]:
        return self._staged.values()

    @property
    def changed(self) -> list[StagedWrite]:
        return [s for s in self._staged.values() if s.after is not s.before]

    @property
    def kind(self) -> Kind:
        """Any kind of the store that this plan commits to."""
        return next(iter(self._staged.values())).kind

    def add(self, writes: Sequence[Write], token: FencingToken | None) -> None:
        if token is not None:
            self._add_token(token)
        for write in writes:
            match write:
                case Create():
                    key = self._create(write)
                case Update():
                    key = self._update(write)
                case SetStatus():
                    key = self._set_status(write)
                case Delete():
                    key = self._delete(write)
            self._order.append(key)
        if len({s.kind.ephemeral for s in self._staged.values()}) > 1:
            raise BadRequest("commit: Events are in a separate store; next: commit them separately")

    def transaction(self, appends: tuple[Append, ...]) -> Txn:
        compares = {s.key: s.before.revision if s.before is not None else 0 for s in self._staged.values()}
        puts = tuple(Remove(s.key) if s.after is None else Put(s.key, s.value, s.after) for s in self.changed)
        rests_on = {kind.store_key(where, name): at for (kind, where, name), at in self._dependencies.items()}
        merged = rests_on | compares
        return Txn(tuple(Compare(key, revision) for key, revision in merged.items()), puts, appends)

    def results(self, revisions: dict[str, int]) -> tuple[Object | None, ...]:
        """The objects as stored, one per write; `revisions` are those of the changed keys."""
        return tuple(_result(self._staged[key], revisions.get(key, 0)) for key in self._order)

    def is_current(self) -> bool:
        """Whether the state that was read is still the published one. If not, planning again may succeed at once."""
        written = all(s.before is self._objects.get(s.kind, _namespace(s), _name(s)) for s in self._staged.values())
        return written and all(self._revision(*what) == revision for what, revision in self._dependencies.items())

    def _revision(self, kind: Kind, namespace: str, name: str) -> int:
        found = self._objects.get(kind, namespace, name)
        return found.revision if found is not None else 0

    # The four writes

    def _create(self, write: Create) -> str:
        kind = self._kind_of(write.object)
        given = write.object
        if isinstance(given, Secret) and given.sealed is not None:
            raise BadRequest("secret: sealed by another cell; next: write its data")
        mirror = self._is_mirror(kind)
        meta = given.metadata
        if meta.resource_version and not mirror:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        if not meta.name and meta.generate_name:
            given = self._named(kind, given)
            meta = given.metadata
        self._check_home(kind, given.key)
        event_scope.require_own_subject(self._who, self._cell, kind, given, self._objects)
        key = kind.store_key(meta.namespace, meta.name)
        staged = self._staged_at(kind, meta.namespace, meta.name)
        if staged.after is not None:
            raise faults.already_exists(kind, meta.name)
        # `replicate` chooses the uids of its replicas, so that it can queue them in the commit that creates them.
        uid = meta.uid if meta.uid and "replicate" in self._who.roles else self._ports.ids.uid()
        if mirror:
            after = stamp.mirror_object(given, None, uid=uid, now=self._now)
        else:
            self._check_namespace(kind, meta.namespace, meta.name)
            with _report_type_errors(kind, given):
                signed = with_requester(self._who, self._cell, None, _with_defaults(kind, given))
                after = stamp.create_object(kind, signed, uid=uid, now=self._now, who=self._who)
            if isinstance(after, Replica) and after.spec.exclusive is not None:
                self._check_ordinal(after)
        self._check_and_stage(staged, None, after, "create")
        return key

    def _update(self, write: Update) -> str:
        kind = self._kind_of(write.object)
        given = write.object
        meta = given.metadata
        if write.subresource not in ("", "status"):
            raise BadRequest(f"unknown subresource {write.subresource} (expected none, or status)")
        self._check_home(kind, given.key)
        staged = self._staged_at(kind, meta.namespace, meta.name)
        before = self._sealer.open(staged.after) if staged.after is not None else None
        if before is None:
            raise faults.not_found(kind, meta.name)
        event_scope.require_visible(self._who, self._cell, kind, before, self._objects)
        if meta.uid and meta.uid != before.uid:
            raise faults.other_uid(kind, meta.name, meta.uid, before.uid)
        if not meta.resource_version:
            rule = "must be specified for an update"
            raise faults.invalid(kind, meta.name, [invalid("metadata.resourceVersion", "0x0", rule)])
        if staged.before is None or given.revision != staged.before.revision:
            raise faults.modified(kind, meta.name)
        given = self._opened(given, staged.after)
        with _report_type_errors(kind, given):
            if self._is_mirror(kind):
                after = stamp.mirror_object(given, before, uid=before.uid, now=self._now)
            elif write.subresource:
                after = stamp.replace_status(before, given, now=self._now) if kind.has_status else before
            else:
                after = stamp.update_object(
                    kind, before, with_requester(self._who, self._cell, before, _with_defaults(kind, given))
                )
        self._check_and_stage(staged, before, after, write.subresource or "update")
        return staged.key

    def _set_status(self, write: SetStatus) -> str:
        kind, before, staged = self._target(write.kind, write.key, write.uid, write.if_revision, "status")
        known = stamp.block_types(kind)
        wrong = [name for name in write.blocks if name not in known]
        if wrong:
            blocks = [
                unsupported(f"status.{name}", name, sorted({f.encode_name for f in known.values()})) for name in wrong
            ]
            raise faults.invalid(kind, write.key.name, blocks)
        observed = getattr(before.status, "observed_generation", 0)
        owns_status = bool(self._who.roles & owners(kind.name, "status", mirrored_here=self._is_mirror(kind)))
        if owns_status and 0 < write.observed_generation < observed:
            # Only the owner of the status maintains observedGeneration; blocks of other writers do not carry it.
            raise faults.stale_status(kind, write.key, write.observed_generation, observed)
        try:
            after = stamp.set_blocks(kind, before, write, now=self._now)
        except (msgspec.ValidationError, TypeError) as wrong_type:
            raise faults.invalid(kind, write.key.name, [_type_cause(wrong_type, "status")]) from None
        self._check_and_stage(staged, before, after, "status")
        return staged.key

    def _delete(self, write: Delete) -> str:
        kind, before, staged = self._target(write.kind, write.key, write.uid, write.if_revision, "delete")
        propagation = write.propagation or "Background"
        if propagation not in stamp.PROPAGATION_FINALIZERS:
            choices = stamp.PROPAGATION_FINALIZERS
            raise faults.invalid(kind, write.key.name, [unsupported("propagationPolicy", propagation, choices)])
        mirror = self._is_mirror(kind)
        allowed = deleters(kind.name, mirrored_here=mirror)
        self._check_scope(kind, write.key, before, None)
        if kind.name not in scope.FREELY_DELETED and not self._who.roles & allowed:
            raise faults.not_deleter(kind, write.key, self._who, allowed)
        now_s = self._ports.clock.now()
        case = admission.AdmissionCase(
            self._who, kind, before, None, self._objects, self._cell, deleting=True, now=now_s
        )
        self._raise_findings(kind, write.key, [] if mirror else admission.admit(case))
        after = None if mirror else stamp.mark_deleted(kind, before, propagation, now=self._now)
        self._stage(staged, after, "delete")
        return staged.key

    # Rules in order

    def _check_and_stage(self, staged: StagedWrite, before: Object | None, after: Object, op: str) -> None:
        kind, meta = staged.kind, after.metadata
        self._check_scope(kind, after.key, before, after)
        if before is not None and after == before:
            staged.ops = (*staged.ops, op)
            return
        restated = self._status_only(staged, before, after)
        value, typed = restated or _encode_typed(kind, after)
        meta = typed.metadata
        mirror = self._is_mirror(kind)
        broken = list(unowned_changes(self._who, kind, before, typed, mirrored_here=mirror))
        if broken:
            raise faults.not_owner(kind, typed.key, self._who, broken)
        causes = list(validate_size(value))
        findings: list[admission.Finding] = []
        if restated is None:  # a status change needs neither metadata validation nor admission
            causes += validate_metadata(kind, meta, before.metadata if before is not None else None)
        if not mirror:
            causes += kind.validate(typed, before)
            causes += _observed_causes(before, typed)
        if not mirror and restated is None:
            now_s = self._ports.clock.now()
            case = admission.AdmissionCase(self._who, kind, before, typed, self._objects, self._cell, now=now_s)
            findings = admission.admit(case)
        if causes or findings:
            self._raise_findings(kind, typed.key, [*causes, *findings])
        goes = before is not None and meta.terminating and not meta.finalizers and not mirror
        self._stage(staged, None if goes else typed, op, value)

    def _status_only(self, staged: StagedWrite, before: Object | None, after: Object) -> tuple[bytes, Object] | None:
        """The bytes and object of a write that changes only the status; None if the general path is needed."""
        if before is None or after.metadata is not before.metadata:
            return None
        value = staged.value
        if not staged.changed:
            meta = before.metadata
            entry = self._objects.entry(staged.kind, meta.namespace, meta.name)
            value = entry.value if entry is not None else b""
        try:
            return codec.replace_status(staged.kind, value, before, after)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
            return None  # the general path reports what is wrong, and where

    def _raise_findings(self, kind: Kind, at: Key, findings: Sequence[admission.Finding]) -> None:
        causes = [f for f in findings if isinstance(f, Cause)]
        if causes:
            raise faults.invalid(kind, at.name, causes)
        for finding in findings:
            if isinstance(finding, Refused):
                if finding.reason == admission.OWNER_EXISTS:
                    raise faults.stale_collector_view(kind, at, finding)
                raise faults.admission_refused(kind, at, finding)
            if isinstance(finding, admission.AdmissionWarning):
                self.warnings.append(finding.text)

    def _check_home(self, kind: Kind, at: Key) -> None:
        """Checked before anything is read, so that the error names the right cell rather than a missing object."""
        why = scope.wrong_cell_refusal(self._who, kind, self._cell, at.name)
        why = why or scope.name_refusal(self._who, kind, self._cell, at.namespace, at.name)
        if why is not None:
            raise faults.forbidden(kind, at, why)

    def _check_scope(self, kind: Kind, at: Key, before: Object | None, after: Object | None) -> None:
        why = scope.scope_refusal(self._who, kind, self._cell, at.namespace, (before, after))
        if why is not None:
            raise faults.forbidden(kind, at, why)

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced or not namespace or kind.name in _ANY_NAMESPACE:
            return
        key = _TENANT.store_key("", namespace)
        here = self._staged.get(key)
        tenant = here.after if here is not None else self._objects.get(_TENANT, "", namespace)
        if tenant is None:
            raise faults.no_namespace(namespace)
        if tenant.metadata.terminating:
            raise faults.namespace_terminating(kind, name, namespace)
        if here is None:
            # If the tenant starts terminating in the meantime, the new object would never be deleted.
            self._dependencies[(_TENANT, "", namespace)] = tenant.revision

    def _check_ordinal(self, replica: Replica) -> None:
        """Exclusive replicas are created only while this region holds their ordinal.

        Once the ordinal was withdrawn and the region reported that nothing of it is left, a creation in flight must
        fail: the ordinal may belong to another region by then (S7).
        """
        spec, namespace = replica.spec, replica.metadata.namespace
        giver: Any = self._objects.get(_ASSIGNMENT, namespace, spec.assignment)
        if giver is None or spec.ordinal not in giver.spec.ordinals:
            raise faults.ordinal_not_assigned(replica.key, spec.assignment, spec.ordinal)
        self._dependencies[(_ASSIGNMENT, namespace, spec.assignment)] = giver.revision

    # State that the plan reads

    def _add_token(self, token: FencingToken) -> None:
        term = self._objects.get(_TERM, "", token.election)
        newest = term.revision if term is not None else 0
        if term is None or newest > token.revision:
            raise StaleToken(
                f"election {token.election}: this process is no longer the leader (expected term revision {newest}, "
                f"found {token.revision})",
                facts={"election": token.election, "token": token.revision, "current": newest},
            )
        self._dependencies[(_TERM, "", token.election)] = token.revision

    def _target(self, kind_name: str, at: Key, uid: str, if_revision: int, op: str) -> tuple[Kind, Any, StagedWrite]:
        kind = BY_NAME.get(kind_name)
        if kind is None:
            raise BadRequest(f"kind {kind_name}: unknown")
        self._check_home(kind, at)
        staged = self._staged_at(kind, at.namespace, at.name)
        before = staged.after
        if before is None:
            raise faults.not_found(kind, at.name)
        event_scope.require_visible(self._who, self._cell, kind, before, self._objects)
        if not uid:
            raise BadRequest(f"{kind.singular} {at}: the write has no uid")
        if before.uid != uid:
            raise faults.other_uid(kind, at.name, uid, before.uid)
        if if_revision and (staged.before is None or staged.before.revision != if_revision):
            raise faults.modified(kind, at.name)
        if op == "status" and not kind.has_status:
            raise BadRequest(f"{kind.singular} {at}: this kind has no status")
        return kind, before, staged

    def _staged_at(self, kind: Kind, namespace: str, name: str) -> StagedWrite:
        key = kind.store_key(namespace, name)
        staged = self._staged.get(key)
        if staged is None:
            stored = self._objects.get(kind, namespace, name)
            staged = self._staged[key] = StagedWrite(kind, key, stored, stored)
        return staged

    def _stage(self, staged: StagedWrite, after: Object | None, op: str, value: bytes = b"") -> None:
        if after is not None and after is not staged.before and not value:
            value, after = _encode_typed(staged.kind, after)
        if isinstance(after, Secret) and after.sealed is None:
            value, after = _encode_typed(staged.kind, self._sealer.seal(after))
            self._raise_findings(staged.kind, after.key, list(validate_size(value)))
        staged.after, staged.value, staged.ops = after, value, (*staged.ops, op)

    def _opened(self, given: Object, stored: Object | None) -> Object:
        """A component that changes only metadata of a Secret writes the sealed form back, as it read it."""
        if not isinstance(given, Secret) or given.sealed is None:
            return given
        if not isinstance(stored, Secret) or stored.sealed != given.sealed:
            raise BadRequest(f"secret {given.key}: sealed differently than stored; next: write its data")
        opened = self._sealer.open(stored)
        meta = msgspec.structs.replace(given.metadata, annotations=opened.metadata.annotations)
        return msgspec.structs.replace(opened, metadata=meta)

    def _kind_of(self, item: Object) -> Kind:
        kind = BY_TYPE.get(type(item))
        if kind is None:
            raise BadRequest(f"{type(item).__name__}: not a stored kind")
        return kind

    def _is_mirror(self, kind: Kind) -> bool:
        return kind.name in _MIRRORED[self._cell == scope.GLOBAL_CELL] and LINK in self._who.roles

    def _named(self, kind: Kind, given: Object) -> Object:
        meta = given.metadata
        for _ in range(NAME_ATTEMPTS):
            name = stamp.generated_name(meta.generate_name, self._ports.random.choice)
            if self._is_free(kind, meta.namespace, name):
                break
        return msgspec.structs.replace(given, metadata=msgspec.structs.replace(meta, name=name))

    def _is_free(self, kind: Kind, namespace: str, name: str) -> bool:
        taken = kind.store_key(namespace, name) in self._staged
        return not taken and self._objects.get(kind, namespace, name) is None


def _with_defaults(kind: Kind, given: Object) -> Object:
    if kind.default is None:
        return given
    defaulted: Object = kind.default(given)
    return defaulted


@contextmanager
def _report_type_errors(kind: Kind, given: Object) -> Iterator[None]:
    """Data of the wrong type can break the steps before types are checked. Reports the type error in that case."""
    try:
        yield
    except (AttributeError, TypeError) as wrong:
        _encode_typed(kind, given)
        raise faults.invalid(kind, str(given.metadata.name), [_type_cause(wrong, "")]) from wrong


def _encode_typed(kind: Kind, after: Object) -> tuple[bytes, Object]:
    """The bytes to store and the object exactly as those bytes decode, so that the checked object is the stored one."""
    try:
        value = codec.encode(after)
        typed: Object = codec.decode_value(kind, value)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as wrong:
        raise faults.invalid(kind, after.metadata.name, [_type_cause(wrong, "")]) from None
    return value, typed


def _type_cause(wrong: Exception, within: str) -> Cause:
    text, _, path = str(wrong).partition(" - at `$")
    field = (within + path.rstrip("`")).lstrip(".")
    return Cause(field, "FieldValueTypeInvalid", f"Invalid value: {text}")


def _observed_causes(before: Object | None, after: Object) -> Iterable[Cause]:
    status = getattr(after, "status", None)
    observed = getattr(status, "observed_generation", 0)
    if not observed or (before is not None and observed == getattr(before.status, "observed_generation", 0)):  # type: ignore[attr-defined]
        return ()
    return validate_observed(observed, after.metadata.generation)


def _result(staged: StagedWrite, revision: int) -> Object | None:
    """The object as stored; after a dry run as it would be stored, at its present revision, which `kubectl diff`
    compares.
    """
    after = staged.after
    if after is None or not staged.changed:
        return after
    revision = revision or (staged.before.revision if staged.before is not None else 0)
    if not revision:
        return after
    if after.metadata.resource_version == str(revision):
        return after
    return codec.with_revision(after, revision)


def audit_entry(staged: StagedWrite) -> audit.AuditEntry:
    shown = staged.after or staged.before
    assert shown is not None, "a changed object existed before or exists after"
    meta = shown.metadata
    return audit.AuditEntry(
        op=audit.commit_verb(staged.ops),
        kind=staged.kind.name,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        before=staged.before.revision if staged.before is not None else 0,
    )


def _namespace(staged: StagedWrite) -> str:
    return staged.key.split("/", 3)[2] if staged.kind.namespaced else ""


def _name(staged: StagedWrite) -> str:
    return staged.key.rpartition("/")[2]
