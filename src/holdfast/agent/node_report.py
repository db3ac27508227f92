"""The node's own status block: its epoch, whether what runs equals what is bound, and what the node is like.

`reconciled` becomes true once per epoch, when nothing runs whose claim is over, and stays true under that epoch. The
count of running work is told when it has come to rest, or seldom while it changes: every write of a Node costs binds
that compare its revision.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import __version__
from holdfast.agent.registration import Registration
from holdfast.agent.reports import Reports
from holdfast.model import limits
from holdfast.model.meta import Condition, find_condition
from holdfast.model.node import NodeExecution, Quarantine
from holdfast.model.reasons import Reason
from holdfast.model.writes import SetStatus
from holdfast.runtime.ports import Clock


class Traits(msgspec.Struct, frozen=True):
    """What the node is like, beyond what runs on it."""

    warm: tuple[str, ...] = ()
    isolation: str = ""
    weakness: str = ""


class NodeReport:
    def __init__(self, registration: Registration, reports: Reports, clock: Clock) -> None:
        self._registration = registration
        self._reports = reports
        self._clock = clock
        self._reconciled_epoch = 0
        self._last: NodeExecution | None = None
        self._told_mono_s = 0.0
        self._node_uid = ""
        self._told_overcommitted = False
        self._timer: asyncio.TimerHandle | None = None

    def say(
        self, *, listed: bool, zombies: int, running: int, traits: Traits, quarantine: Quarantine | None = None,
        overcommitted: str = "",
    ) -> None:  # fmt: skip
        """`overcommitted` says by how much more is bound here than there is, where capacity has shrunk."""
        lease, node = self._registration.lease, self._registration.node
        if node is None or lease.epoch == 0 or lease.fenced:
            return
        if listed and zombies == 0:
            self._reconciled_epoch = lease.epoch
        reconciled = self._reconciled_epoch == lease.epoch
        message = "waiting for the list of bindings" if not listed else f"{zombies} to be stopped"
        if reconciled:
            message = overcommitted
        block = NodeExecution(
            epoch=lease.epoch, reconciled=reconciled, running=running, agent_version=__version__, message=message,
            warm=traits.warm, isolation=traits.isolation, quarantine=quarantine,
        )  # fmt: skip
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._last is None or node.uid != self._node_uid or not _alike(self._last, block):
            self._tell(block, traits)
        elif block != self._last:
            busy_s = limits.NODE_REPORT_EVERY_S - (self._clock.monotonic() - self._told_mono_s)
            wait_s = limits.NODE_REPORT_QUIET_S if busy_s > 0 else 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tell, block, traits)
        elif self._registration.read_mono_s > self._told_mono_s + limits.NODE_REPORT_EVERY_S and (
            node.status.execution != block
        ):
            # Told long before the Node was read, and not there: a release that does not know all of it rewrote it.
            self._tell(block, traits, again=True)
        else:
            # Once more: what the region has already costs nothing, and a word lost to a conflict must not stay lost.
            self._reports.put(SetStatus(kind="Node", key=node.key, uid=node.uid, blocks={"execution": block}))

    def rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, block: NodeExecution, traits: Traits, *, again: bool = False) -> None:
        node, lease = self._registration.node, self._registration.lease
        if node is None or lease.epoch != block.epoch or lease.fenced:
            return
        self._last, self._told_mono_s, self._node_uid = block, self._clock.monotonic(), node.uid
        conditions: list[Condition] = []
        if traits.isolation:
            well = not traits.weakness
            conditions.append(Condition(
                type="Confined", status="True" if well else "False",
                reason=Reason.CONFINED if well else Reason.WEAKLY_CONFINED, message=traits.weakness,
            ))  # fmt: skip
        over = block.reconciled and bool(block.message)
        if over or self._told_overcommitted or find_condition(node.status.conditions, "Overcommitted") is not None:
            self._told_overcommitted = True
            reason = Reason.OVERCOMMITTED if over else Reason.CAPACITY_PRESENT
            status = "True" if over else "False"
            conditions.append(Condition(type="Overcommitted", status=status, reason=reason, message=block.message))
        said = SetStatus(
            kind="Node", key=node.key, uid=node.uid, blocks={"execution": block}, conditions=tuple(conditions)
        )
        (self._reports.say_again if again else self._reports.put)(said)


def _alike(a: NodeExecution, b: NodeExecution) -> bool:
    """Whether they differ in nothing that decides anything: counts and caches can wait."""
    return (a.epoch, a.reconciled, a.message, a.isolation, a.quarantine) == (
        b.epoch, b.reconciled, b.message, b.isolation, b.quarantine,
    )  # fmt: skip
