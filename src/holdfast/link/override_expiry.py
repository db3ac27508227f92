"""Counts the time of overrides on a clock that only passes, and writes down their ends (S8).

Whoever acts on an override looks at its phase and its end in this cell's store. In a region the end there is by the
region's own wall clock, kept right by this count: a clock that is skewed or stepped neither prolongs nor ends anything.

What always holds:

- A count only ever gets shorter, and what it has ended is on record as ended: after a restart, too, no word of the
  global cell makes it act again. That cell may have lost count itself, and its clock may have been put back.
- In a region it starts from what is left by the global cell's clock (`global_clock`), at the latest when the copy is
  made. After a restart that lost it, an override that allows more than usual is over until the global cell is heard
  again; one that forbids goes on for at most what its copy says, and at most its whole time.
- In the cell where it was given, it starts when it is first seen active, from the end that was set for it. If the clock
  is put back after that, the end is written anew, earlier: whoever counts next has little else to go by. One that was
  given in a region, allows more than usual and was active before this process counted is over: nobody knows for how
  long it has acted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.fleet.override_kinds import RULES, max_duration_s
from holdfast.foundation.ports import Ports
from holdfast.link.global_clock import GlobalClock
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.meta import Condition
from holdfast.model.override import ACTIVE, EXPIRED, Override, break_glass_prefix
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import SetStatus, Update, Write


class OverrideExpiry:
    """One cell's. `home` writes what was given in this cell, `copies` what is a copy here; None at the global cell."""

    def __init__(self, here: View, home: Client, ports: Ports, copies: Client | None = None) -> None:
        self.clock = GlobalClock()
        self._here = here
        self._home = home
        self._copies = copies
        self._ports = ports
        self._ends: dict[str, float] = {}
        """uid → the end, on the monotonic clock."""
        self._counted_by_another = False
        """Whether what is found active now was so before this process counted."""
        self._log = structlog.get_logger().bind(cell=home.cell)

    def reset(self) -> None:
        """Another process counted meanwhile, or none did."""
        self._ends.clear()
        self._counted_by_another = True
        self.clock.forget()

    async def run(self) -> None:
        """Runs until cancelled, in the one process of the cell that was elected."""
        while True:
            await self._commit(self.due_writes())
            await self._ports.clock.sleep(limits.OVERRIDE_EXPIRY_CHECK_EVERY_S)

    def mirrored_override(self, source: Override, copy: Override | None) -> Override | None:
        """The status a copy should have now; None when that is not known yet. `source` carries the global status."""
        if source.status.phase == ACTIVE and copy is not None and copy.uid == source.uid and self._stays(source, copy):
            return msgspec.structs.replace(source, status=copy.status)
        if source.status.phase != ACTIVE or source.spec.revoked or not source.status.expires_at:
            return source  # it does not act
        left_s = self.clock.remaining_s(parse_time(source.status.expires_at), self._ports.clock.monotonic())
        if left_s is not None:
            self._count(source, left_s)
        end_s = self._ends.get(source.uid)
        if end_s is None:
            return None
        if end_s <= self._ports.clock.monotonic():
            return _ended(source)
        known = copy.status.expires_at if copy is not None and copy.status.phase == ACTIVE else ""
        status = msgspec.structs.replace(source.status, expires_at=known or self._wall(end_s))
        return msgspec.structs.replace(source, status=status)

    def _stays(self, source: Override, copy: Override) -> bool:
        """Whether the copy is over for good, though the global cell's status does not say so yet: it was taken back, or
        its time had passed here."""
        return copy.status.phase != ACTIVE if source.spec.revoked else _is_over(copy)

    def to_local_s(self, at: str) -> float:
        """A moment of the global cell's clock on this region's wall clock as it is now; not a second too late. Long
        past while nothing is known of that clock."""
        left_s = self.clock.remaining_s(parse_time(at), self._ports.clock.monotonic())
        return self._ports.clock.now() + left_s if left_s is not None else 0.0

    def due_writes(self) -> list[Write]:
        """What must be written now: ends that have come, and stored ends that a step of the clock has made wrong."""
        overrides = self._here.list(Override)
        known, mono_s = {o.uid for o in overrides}, self._ports.clock.monotonic()
        for gone in [uid for uid, end_s in self._ends.items() if end_s < mono_s and uid not in known]:
            del self._ends[gone]
        acting = [
            o for o in overrides if o.status.phase == ACTIVE and o.status.expires_at and not o.metadata.terminating
        ]
        found = [write for override in acting for write in self._writes(override)]
        self._counted_by_another = False
        return found

    def _writes(self, override: Override) -> Iterable[Write]:
        copy = self._is_copy(override)
        mono_s, stored_s = self._ports.clock.monotonic(), parse_time(override.status.expires_at)
        if override.uid not in self._ends:
            given_here = self._copies is not None and not copy
            if RULES[override.spec.kind].permissive and (copy or (given_here and self._counted_by_another)):
                return (self._write(_ended(override, lost=True, again=copy), override),)
            self._count(override, max(0.0, stored_s - self._now_for(override)))
        end_s = self._ends[override.uid]
        if end_s <= mono_s:
            return (self._write(_ended(override), override),)
        late_s = stored_s - parse_time(self._wall(end_s))
        if late_s > limits.EXPIRY_CLOCK_ERROR_MAX_S or (copy and late_s < -limits.EXPIRY_CLOCK_ERROR_MAX_S):
            status = msgspec.structs.replace(override.status, expires_at=self._wall(end_s))
            return (self._write(msgspec.structs.replace(override, status=status), override),)
        return ()

    def _now_for(self, override: Override) -> float:
        """Where this cell's clock is as its count begins. It may have been put back while nobody counted: for what
        allows more than usual it is no earlier than where it was when a region was last heard."""
        now_s = self._ports.clock.now()
        if self._copies is not None or not RULES[override.spec.kind].permissive:
            return now_s
        heard = (region.status.health.last_contact_at for region in self._here.list(Region))
        return max([now_s, *(parse_time(at) for at in heard if at)])

    def _is_copy(self, override: Override) -> bool:
        given_here = override.metadata.name.startswith(break_glass_prefix(self._home.cell))
        return self._copies is not None and not given_here

    def _count(self, override: Override, left_s: float) -> None:
        end_s = self._ports.clock.monotonic() + min(left_s, max_duration_s(override))
        self._ends[override.uid] = min(end_s, self._ends.get(override.uid, end_s))

    def _wall(self, end_s: float) -> str:
        return micro_text(self._ports.clock.now() + end_s - self._ports.clock.monotonic())

    def _write(self, wanted: Override, now: Override) -> Write:
        """A copy is replaced as a whole, as the link writes copies; at home only the status is this part's."""
        if self._is_copy(now):
            return Update(wanted)
        blocks = {"phase": wanted.status.phase, "expiresAt": wanted.status.expires_at}
        return SetStatus("Override", now.key, now.uid, blocks=blocks, conditions=wanted.status.conditions)

    async def _commit(self, writes: list[Write]) -> None:
        for write in writes:
            client = self._copies if isinstance(write, Update) else self._home
            assert client is not None, "only a region has copies"
            try:
                await client.commit([write])
            except Fault as fault:
                self._log.info("override_expiry_write_failed", reason=fault.reason, message=fault.message)


OverrideTiming = Callable[[Override, Override | None], Override | None]
"""(original, copy) → the original as this region should keep it, or None to leave everything as it is."""


def _is_over(copy: Override) -> bool:
    """Whether its time has passed here, as far as that was counted; one whose count was lost may act again."""
    if copy.status.phase != EXPIRED:
        return False
    return not any(c.type == "Active" and c.reason == Reason.OVERRIDE_TIME_UNKNOWN for c in copy.status.conditions)


def _ended(override: Override, *, lost: bool = False, again: bool = True) -> Override:
    back = "it acts again when the global cell is heard" if again else "give it again if it is still needed"
    why = f"the count of its time was lost in a restart; {back}"
    said = Condition(
        type="Active",
        status="False",
        reason=Reason.OVERRIDE_TIME_UNKNOWN if lost else Reason.OVERRIDE_EXPIRED,
        message=why if lost else f"ended at {override.status.expires_at} or before, by the time that has passed",
        observed_generation=override.metadata.generation,
    )
    others = tuple(c for c in override.status.conditions if c.type != said.type)
    status = msgspec.structs.replace(override.status, phase=EXPIRED, conditions=(said, *others))
    return msgspec.structs.replace(override, status=status)
