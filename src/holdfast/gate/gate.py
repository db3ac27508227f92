"""The gate: every write passes it. Validates, admits, checks ownership, stamps, audits and commits.

One commit is one transaction, including its audit record. Nothing else writes objects to the store except the
authority, which commits placement under the same audit and ownership rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import NoProof, resolve
from holdfast.gate import faults
from holdfast.gate.audit import AuditEntry, AuditLog, commit_record, commit_verb
from holdfast.gate.sealing import Sealer
from holdfast.gate.write_plan import StagedWrite, WritePlan, audit_entry
from holdfast.model import codec, limits
from holdfast.model.errors import Ambiguous, BadRequest, Conflict, Expired, Fault, Forbidden, StaleToken
from holdfast.model.kinds import BY_NAME, BY_TYPE, Kind
from holdfast.model.principal import CONTROLLERS, Principal
from holdfast.model.secret import Secret
from holdfast.model.writes import Create, Update, Write
from holdfast.store.contract import Append, Compare, Put, Txn
from holdfast.store.objects import Objects

# Attempts of one commit after conflicts. After that, the writer gets a Conflict and decides again.
COMMIT_ATTEMPTS = 8
# Wait for the conflicting write to become visible before the gate plans the commit again. After that, it is planned
# anyway and may conflict again, up to COMMIT_ATTEMPTS. A write is visible within milliseconds.
GATE_CONFLICT_WAIT_S = 0.5
# Time to read back a commit that got no response. After that, the writer gets Ambiguous.
READ_BACK_TIMEOUT_S = 5.0

_DURABLE = BY_NAME["Tenant"]
_SECRET = BY_NAME["Secret"]
_committed = metrics.GATE_COMMITS.labels("committed")
_unchanged = metrics.GATE_COMMITS.labels("unchanged")

CommitObserver = Callable[[Sequence[StagedWrite], float], None]
"""Called with the objects of every durable commit, before and after. Must not raise or wait."""


class Gate:
    def __init__(self, cell: str, objects: Objects, ports: Ports, *, sealer: Sealer | None = None) -> None:
        """Without a `sealer` Secrets are sealed with a key that is lost with the process."""
        self.sealer = sealer if sealer is not None else Sealer()
        self.cell = cell
        self.objects = objects
        self.ports = ports
        self.audit = AuditLog(objects.store_of(_DURABLE), ports)
        self.observer: CommitObserver | None = None

    async def commit(
        self,
        who: Principal,
        writes: Sequence[Write],
        *,
        token: FencingToken | None = None,
        dry_run: bool = False,
        request: str = "",
        warnings: list[str] | None = None,
    ) -> CommitReceipt:
        """Commits all writes or none. `request` describes the request in the audit record.

        Warnings for the caller are added to `warnings`.
        Raises Forbidden, Invalid (with every cause), NotFound, AlreadyExists, Conflict, StaleToken.
        """
        if not writes:
            return CommitReceipt(self.objects.head(_DURABLE), ())
        if len(writes) > limits.MAX_WRITES_PER_COMMIT:
            raise BadRequest(f"commit: too many writes (limit {limits.MAX_WRITES_PER_COMMIT}, found {len(writes)})")
        try:
            return await self._commit(who, writes, token, dry_run=dry_run, request=request, warnings=warnings)
        except (Forbidden, StaleToken) as fault:
            resource = str(fault.facts.get("kind", "")) or _resource(writes)
            self.audit.record_fault(fault, who, _verb(writes), resource, request=request)
            metrics.GATE_COMMITS.labels(fault.reason).inc()
            raise
        except Fault as fault:
            if faults.HIDDEN in fault.facts:
                text = f"{fault.message} (it belongs to another node or region)"
                self.audit.record_refusal(who, _verb(writes), _resource(writes), "OutOfScope", message=text)
            metrics.GATE_COMMITS.labels(fault.reason).inc()
            raise

    async def _commit(
        self,
        who: Principal,
        writes: Sequence[Write],
        token: FencingToken | None,
        *,
        dry_run: bool,
        request: str,
        warnings: list[str] | None,
    ) -> CommitReceipt:
        if not who.roles:
            raise Forbidden(f'User "{who.name}" has no role that may write')
        for _ in range(COMMIT_ATTEMPTS):
            plan = WritePlan(self.cell, self.objects, self.ports, who, self.sealer)
            try:
                plan.add(writes, token)
            except Fault:
                # A refusal must not be based on stale state: another server of this cell may have committed since.
                if not await self._was_behind():
                    raise
                continue
            kind, changed = plan.kind, plan.changed
            head = self.objects.head(kind)
            if warnings is not None:
                warnings[:] = plan.warnings
            if dry_run or not changed:
                _unchanged.inc()
                return CommitReceipt(head, plan.results({}))
            txn = plan.transaction(self._records(who, kind, changed, request))
            submitted_s = self.ports.clock.now()
            try:
                done = await self.objects.commit(kind, txn)
                revisions = dict(zip((s.key for s in changed), done.revisions, strict=True))
            except Conflict:
                metrics.GATE_RETRIES.inc()
                await self._catch_up(plan)
                continue
            except Ambiguous as unknown:
                revisions = await self._read_back(kind, head, changed, unknown)
            self.audit.note_appended(len(txn.appends))
            if kind.ephemeral and CONTROLLERS not in who.groups:
                self._record_events(who, changed, request)
            _committed.inc()
            if self.observer is not None:
                self.observer(changed, submitted_s)
            return CommitReceipt(max(revisions.values()), plan.results(revisions))
        raise Conflict(
            f"{_resource(writes)}: concurrent writes won all {COMMIT_ATTEMPTS} attempts; next: read again and retry"
        )

    async def _was_behind(self) -> bool:
        head = self.objects.head(_DURABLE)
        return await self.objects.newest_revision(_DURABLE) > head

    def _records(self, who: Principal, kind: Kind, changed: Sequence[StagedWrite], request: str) -> tuple[Append, ...]:
        """The audit record; none for Events and for leaders that renew their leases."""
        if kind.ephemeral:
            return ()
        if CONTROLLERS in who.groups and all(s.kind.name == "Lease" and s.before is not None for s in changed):
            return ()
        verb = commit_verb(op for s in changed for op in s.ops)
        return (commit_record(who, self.ports.clock.now(), verb, [audit_entry(s) for s in changed], request=request),)

    def _record_events(self, who: Principal, changed: Sequence[StagedWrite], request: str) -> None:
        """Events are volatile, so their audit records cannot be in their transaction."""
        for staged in changed:
            event: Any = staged.after or staged.before
            verb, about = commit_verb(staged.ops), event.involved_object
            where = f"{staged.kind.plural}/{event.metadata.namespace}"
            text = f"about {about.kind} {about.namespace}/{about.name}"
            self.audit.record_use(who, verb, where, message=text, request=request)

    async def _catch_up(self, plan: WritePlan) -> None:
        """After a conflict, waits for the winning write to be published; otherwise planning again would conflict
        again.
        """
        if plan.is_current():
            await self.objects.wait_for(plan.kind, self.objects.head(plan.kind) + 1, timeout_s=GATE_CONFLICT_WAIT_S)

    async def _read_back(
        self, kind: Kind, head: int, changed: Sequence[StagedWrite], unknown: Ambiguous
    ) -> dict[str, int]:
        """The first change of each key after the revision that was compared is either this commit's or another's.

        A commit that does not show within READ_BACK_TIMEOUT_S is not repeated here: the caller's client does that.
        """

        async def look() -> dict[str, int] | NoProof:
            revisions: dict[str, int] = {}
            for staged in changed:
                found = await self._first_change(kind, staged.key, head)
                if found is None:
                    return NoProof.ABSENT
                revision, value = found
                if value != (staged.value if staged.after is not None else None):
                    raise Conflict(f"{staged.key}: another write came first; read again and decide again")
                revisions[staged.key] = revision
            return revisions

        backoff = Backoff(self.ports.random)
        what = f"commit that writes {changed[0].key}"
        revisions = await resolve(what, unknown, look, clock=self.ports.clock, pause_s=backoff.next_s)
        await self.objects.wait_for(kind, max(revisions.values()), timeout_s=READ_BACK_TIMEOUT_S)
        return revisions

    async def _first_change(self, kind: Kind, key: str, after: int) -> tuple[int, bytes | None] | None:
        store = self.objects.store_of(kind)
        try:
            async with asyncio.timeout(READ_BACK_TIMEOUT_S):
                async for changes in store.watch(key, after=after):
                    for change in changes:
                        if change.key == key:
                            return change.revision, change.entry.value if change.entry is not None else None
        except (TimeoutError, Expired):
            return None
        return None

    async def reseal(self, who: Principal, secrets: Sequence[Secret]) -> int:
        """Seals stored Secrets with the present key. Nothing that a reader sees changes except the revision. Returns
        how many were written; one that changed meanwhile is left to the next call.
        """
        written = 0
        for stored in secrets:
            after = self.sealer.seal(self.sealer.open(stored))
            meta = stored.metadata
            value, key = codec.encode(after), _SECRET.store_key(meta.namespace, meta.name)
            entry = AuditEntry("reseal", "Secret", meta.name, meta.namespace, meta.uid, before=stored.revision)
            record = commit_record(who, self.ports.clock.now(), "reseal", [entry], request="in-process")
            try:
                await self.objects.commit(_SECRET, Txn((Compare(key, stored.revision),), (Put(key, value),), (record,)))
            except Conflict:
                continue
            self.audit.note_appended(1)
            written += 1
        return written

    async def close(self) -> None:
        """Writes pending refusals. The store must still be open."""
        await self.audit.close()


def _resource(writes: Sequence[Write]) -> str:
    if not writes:
        return ""
    first = writes[0]
    kind = BY_TYPE.get(type(first.object)) if isinstance(first, Create | Update) else BY_NAME.get(first.kind)
    return kind.plural if kind is not None else "unknown"


def _verb(writes: Sequence[Write]) -> str:
    return commit_verb(type(w).__name__.lower() for w in writes)
