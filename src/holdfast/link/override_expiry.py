"""Expires overrides on the monotonic clock and writes their end (S8).

Consumers check an override's phase and `expiresAt` in their cell's store. In a region, `expiresAt` is a time of the
region's wall clock; this module corrects it, so that clock skew or a clock step neither extends nor shortens it.

- A remaining time only decreases. An ended override stays ended after a restart, whatever the global cell reports.
- Mirrored override: starts from the remaining time by the global clock (`global_clock`). After a restart, a permissive
  one has no effect until the global cell is in contact; a forbidding one lasts at most its stored or full time.
- Local override: starts from its `expiresAt` when first seen active. If the wall clock is stepped back, an earlier end
  is written. A permissive break-glass override that was active before this process started ends.
- A write holds only for the revision it was decided on. After a conflict the stored override is read and decided again,
  because a stalled watch may hide an earlier end that is already stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.fleet.override_kinds import RULES, max_duration_s
from holdfast.foundation.ports import Ports
from holdfast.link.global_clock import EXPIRY_CLOCK_ERROR_MAX_S, GlobalClock
from holdfast.model.errors import Conflict, Fault
from holdfast.model.meta import Condition
from holdfast.model.override import ACTIVE, EXPIRED, Override, break_glass_prefix
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import SetStatus, Update, Write

# Interval at which overrides are checked for expiry on the monotonic clock.
OVERRIDE_EXPIRY_CHECK_EVERY_S = 1.0


class OverrideExpiry:
    """Override timers of one cell. `home` writes local overrides, `copies` mirrored ones (None in the global cell)."""

    def __init__(self, here: View, home: Client, ports: Ports, copies: Client | None = None) -> None:
        self.clock = GlobalClock()
        self._here = here
        self._home = home
        self._copies = copies
        self._ports = ports
        self._ends: dict[str, float] = {}
        """uid → expiry on the monotonic clock."""
        self._measured_elsewhere = False
        """Whether overrides found active were active before this process measured their time."""
        self._log = structlog.get_logger().bind(cell=home.cell)

    def reset(self) -> None:
        """Forgets all timers, because another process, or none, measured the time meanwhile."""
        self._ends.clear()
        self._measured_elsewhere = True
        self.clock.forget()

    async def run(self) -> None:
        """Runs until cancelled, in the elected process of the cell."""
        while True:
            await self.commit_due()
            await self._ports.clock.sleep(OVERRIDE_EXPIRY_CHECK_EVERY_S)

    def mirrored_override(self, source: Override, copy: Override | None) -> Override | None:
        """The override as this region should store it; None while its remaining time is unknown."""
        if (
            source.status.phase == ACTIVE
            and copy is not None
            and copy.uid == source.uid
            and self._has_ended_locally(source, copy)
        ):
            return msgspec.structs.replace(source, status=copy.status)
        if source.status.phase != ACTIVE or source.spec.revoked or not source.status.expires_at:
            return source  # not in force
        left_s = self.clock.remaining_s(parse_time(source.status.expires_at), self._ports.clock.monotonic())
        if left_s is not None:
            self._start_timer(source, left_s)
        end_s = self._ends.get(source.uid)
        if end_s is None:
            return None
        if end_s <= self._ports.clock.monotonic():
            return _ended(source)
        known = copy.status.expires_at if copy is not None and copy.status.phase == ACTIVE else ""
        status = msgspec.structs.replace(source.status, expires_at=known or self._wall_text(end_s))
        return msgspec.structs.replace(source, status=status)

    def _has_ended_locally(self, source: Override, copy: Override) -> bool:
        """Whether the copy has ended here although the global status is still Active: revoked, or expired locally."""
        return copy.status.phase != ACTIVE if source.spec.revoked else _is_expired(copy)

    def to_local_s(self, at: str) -> float:
        """A time of the global clock on this region's wall clock, never too late; 0 while that clock is unknown."""
        left_s = self.clock.remaining_s(parse_time(at), self._ports.clock.monotonic())
        return self._ports.clock.now() + left_s if left_s is not None else 0.0

    def due_writes(self) -> list[Write]:
        """Writes for expired overrides, and for stored expiries that a clock step made wrong."""
        overrides = self._here.list(Override)
        known, mono_s = {o.uid for o in overrides}, self._ports.clock.monotonic()
        for gone in [uid for uid, end_s in self._ends.items() if end_s < mono_s and uid not in known]:
            del self._ends[gone]
        found = [write for override in overrides if _is_timed(override) for write in self._writes(override)]
        self._measured_elsewhere = False
        return found

    def _writes(self, override: Override) -> Iterable[Write]:
        copy = self._is_copy(override)
        mono_s, stored_s = self._ports.clock.monotonic(), parse_time(override.status.expires_at)
        if override.uid not in self._ends:
            local = self._copies is not None and not copy
            if RULES[override.spec.kind].permissive and (copy or (local and self._measured_elsewhere)):
                return (self._write(_ended(override, lost=True, again=copy), override),)
            self._start_timer(override, max(0.0, stored_s - self._start_time_s(override)))
        end_s = self._ends[override.uid]
        if end_s <= mono_s:
            return (self._write(_ended(override), override),)
        late_s = stored_s - parse_time(self._wall_text(end_s))
        if late_s > EXPIRY_CLOCK_ERROR_MAX_S or (copy and late_s < -EXPIRY_CLOCK_ERROR_MAX_S):
            status = msgspec.structs.replace(override.status, expires_at=self._wall_text(end_s))
            return (self._write(msgspec.structs.replace(override, status=status), override),)
        return ()

    def _start_time_s(self, override: Override) -> float:
        """The start time for measuring a local override. The wall clock may have been stepped back while the cell
        was down, so for permissive overrides it is at least the last contact with any region."""
        now_s = self._ports.clock.now()
        if self._copies is not None or not RULES[override.spec.kind].permissive:
            return now_s
        contacts = (region.status.health.last_contact_at for region in self._here.list(Region))
        return max([now_s, *(parse_time(at) for at in contacts if at)])

    def _is_copy(self, override: Override) -> bool:
        local = override.metadata.name.startswith(break_glass_prefix(self._home.cell))
        return self._copies is not None and not local

    def _start_timer(self, override: Override, left_s: float) -> None:
        end_s = self._ports.clock.monotonic() + min(left_s, max_duration_s(override))
        self._ends[override.uid] = min(end_s, self._ends.get(override.uid, end_s))

    def _wall_text(self, end_s: float) -> str:
        return micro_text(self._ports.clock.now() + end_s - self._ports.clock.monotonic())

    def _write(self, wanted: Override, now: Override) -> Write:
        """A mirrored override is replaced as a whole; of a local one only the status is written."""
        if self._is_copy(now):
            return Update(wanted)
        blocks = {"phase": wanted.status.phase, "expiresAt": wanted.status.expires_at}
        return SetStatus(
            "Override", now.key, now.uid, blocks=blocks, conditions=wanted.status.conditions, if_revision=now.revision
        )

    async def commit_due(self) -> None:
        """Writes what is due. A write that was decided on a stale view is decided again on the stored override."""
        for write in self.due_writes():
            try:
                await self._commit(write)
            except Conflict:
                await self._commit_as_stored(write)
            except Fault as fault:
                self._log.info("override_expiry_write_failed", reason=fault.reason, message=fault.message)

    async def _commit_as_stored(self, stale: Write) -> None:
        assert isinstance(stale, Update | SetStatus), "overrides are neither created nor deleted here"
        name = stale.object.metadata.name if isinstance(stale, Update) else stale.key.name
        try:
            stored = await self._home.get(Override, name)
            if stored is not None and _is_timed(stored):
                for write in self._writes(stored):
                    await self._commit(write)
        except Fault as fault:
            self._log.info("override_expiry_write_failed", reason=fault.reason, message=fault.message)

    async def _commit(self, write: Write) -> None:
        client = self._copies if isinstance(write, Update) else self._home
        assert client is not None, "only a region has copies"
        await client.commit([write])


OverrideTiming = Callable[[Override, Override | None], Override | None]
"""(original, copy) → the override as this region should store it, or None to change nothing."""


def _is_timed(override: Override) -> bool:
    """Whether the override is in force and its end is written here."""
    return override.status.phase == ACTIVE and bool(override.status.expires_at) and not override.metadata.terminating


def _is_expired(copy: Override) -> bool:
    """Whether the copy expired here. False if its remaining time was lost: then it may become active again."""
    if copy.status.phase != EXPIRED:
        return False
    return not any(c.type == "Active" and c.reason == Reason.OVERRIDE_TIME_UNKNOWN for c in copy.status.conditions)


def _ended(override: Override, *, lost: bool = False, again: bool = True) -> Override:
    next_step = (
        "in force again after contact with the global cell" if again else "create it again if it is still needed"
    )
    why = f"remaining time lost in a restart; {next_step}"
    condition = Condition(
        type="Active",
        status="False",
        reason=Reason.OVERRIDE_TIME_UNKNOWN if lost else Reason.OVERRIDE_EXPIRED,
        message=why if lost else f"expired at {override.status.expires_at} or earlier, by the monotonic clock",
        observed_generation=override.metadata.generation,
    )
    others = tuple(c for c in override.status.conditions if c.type != condition.type)
    status = msgspec.structs.replace(override.status, phase=EXPIRED, conditions=(condition, *others))
    return msgspec.structs.replace(override, status=status)
