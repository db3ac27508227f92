"""The node's execution block: its epoch, whether running tasks match the Bindings, and the node's traits.

`reconciled` becomes true once per epoch, when no task runs whose claim has ended, and stays true under that epoch. The
task count is reported only when it has settled, or rarely while it changes: every write of a Node fails concurrent
binds that compare its revision.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import __version__
from holdfast.agent.registration import Registration
from holdfast.agent.reports import ReportQueue
from holdfast.foundation.ports import Clock
from holdfast.model.meta import Condition, find_condition
from holdfast.model.node import NodeExecution, NodeImage, NodeSystem, Quarantine
from holdfast.model.reasons import Reason
from holdfast.model.writes import SetStatus

# Debounce of node status reports that change only counts.
NODE_REPORT_DEBOUNCE_S = 1.0
# Time since the last node status report after which a report that changes only counts is not debounced.
NODE_REPORT_EVERY_S = 10.0


class NodeTraits(msgspec.Struct, frozen=True):
    """Properties of the node apart from its tasks."""

    cached_artifacts: tuple[str, ...] = ()
    images: tuple[NodeImage, ...] = ()
    isolation: str = ""
    limitation: str = ""
    exposure: str = ""
    unconfirmed: str = ""
    system: NodeSystem | None = None
    scratch_limit: str = ""
    """`scratch_limit` is how sizes of scratch volumes on disk are enforced.

    `limitation` is what the resource limits cannot enforce, `exposure` what separates tasks from each other and from
    the node less than it should, `unconfirmed` which tasks may have processes that the agent cannot find."""


class NodeReport:
    def __init__(self, registration: Registration, reports: ReportQueue, clock: Clock) -> None:
        self._registration = registration
        self._reports = reports
        self._clock = clock
        self._reconciled_epoch = 0
        self._last: NodeExecution | None = None
        self._sent_mono_s = 0.0
        self._node_uid = ""
        self._sent_overcommitted = False
        self._sent_unconfirmed = ""
        self._timer: asyncio.TimerHandle | None = None

    def update(
        self,
        *,
        listed: bool,
        zombies: int,
        held: int,
        running: int,
        traits: NodeTraits,
        quarantine: Quarantine | None = None,
        overcommitted: str = "",
    ) -> None:
        """`overcommitted` is the message for bound claims above the node's capacity; empty if they fit."""
        lease, node = self._registration.lease, self._registration.node
        if node is None or lease.epoch == 0 or lease.fenced:
            return
        if listed and zombies == 0:
            self._reconciled_epoch = lease.epoch
        reconciled = self._reconciled_epoch == lease.epoch
        message = "waiting for the list of Bindings" if not listed else f"{zombies} tasks must stop first"
        if reconciled:
            message = overcommitted
        if held:
            message = f"{held} tasks have no Binding in the region; they keep running until it returns or is confirmed"
        block = NodeExecution(
            epoch=lease.epoch,
            reconciled=reconciled,
            running=running,
            agent_version=__version__,
            message=message,
            cached_artifacts=traits.cached_artifacts,
            images=traits.images,
            isolation=traits.isolation,
            scratch_limit=traits.scratch_limit,
            quarantine=quarantine,
            system=traits.system,
        )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed = self._last is None or not _decisions_equal(self._last, block)
        if changed or node.uid != self._node_uid or traits.unconfirmed != self._sent_unconfirmed:
            self._send(block, traits)
        elif block != self._last:
            busy_s = NODE_REPORT_EVERY_S - (self._clock.monotonic() - self._sent_mono_s)
            wait_s = NODE_REPORT_DEBOUNCE_S if busy_s > 0 else 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._send, block, traits)
        elif self._registration.node_read_mono_s > self._sent_mono_s + NODE_REPORT_EVERY_S and (
            msgspec.structs.replace(node.status.execution, sequence=0) != block
        ):
            # Reported long before the Node was read, and missing there: an older release dropped unknown fields.
            self._send(block, traits, again=True)
        else:
            # Queued again: an unchanged report is not sent, and a report lost to a conflict is.
            self._reports.put(SetStatus(kind="Node", key=node.key, uid=node.uid, blocks={"execution": block}))

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, block: NodeExecution, traits: NodeTraits, *, again: bool = False) -> None:
        node, lease = self._registration.node, self._registration.lease
        if node is None or lease.epoch != block.epoch or lease.fenced:
            return
        self._last, self._sent_mono_s, self._node_uid = block, self._clock.monotonic(), node.uid
        self._sent_unconfirmed = traits.unconfirmed
        conditions: list[Condition] = []
        if traits.isolation:
            enforced = not traits.limitation
            conditions.append(
                Condition(
                    type="ResourceLimitsEnforced",
                    status="True" if enforced else "False",
                    reason=Reason.RESOURCE_LIMITS_ENFORCED if enforced else Reason.RESOURCE_LIMITS_PARTIAL,
                    message=traits.limitation,
                )
            )
            conditions.append(_isolation_condition(traits))
        over = block.reconciled and bool(block.message)
        if over or self._sent_overcommitted or find_condition(node.status.conditions, "Overcommitted") is not None:
            self._sent_overcommitted = True
            reason = Reason.OVERCOMMITTED if over else Reason.CAPACITY_PRESENT
            status = "True" if over else "False"
            conditions.append(Condition(type="Overcommitted", status=status, reason=reason, message=block.message))
        report = SetStatus(
            kind="Node", key=node.key, uid=node.uid, blocks={"execution": block}, conditions=tuple(conditions)
        )
        (self._reports.resend if again else self._reports.put)(report)


def _isolation_condition(traits: NodeTraits) -> Condition:
    if traits.unconfirmed:
        reason, message = Reason.END_UNCONFIRMED, traits.unconfirmed
    elif traits.exposure:
        reason, message = Reason.TASKS_NOT_ISOLATED, traits.exposure
    else:
        reason, message = Reason.TASKS_ISOLATED, ""
    return Condition(type="TasksIsolated", status="False" if message else "True", reason=reason, message=message)


def _decisions_equal(a: NodeExecution, b: NodeExecution) -> bool:
    """Whether they differ only in fields that no decision reads: counts and caches can wait."""
    return (a.epoch, a.reconciled, a.message, a.isolation, a.quarantine) == (
        b.epoch,
        b.reconciled,
        b.message,
        b.isolation,
        b.quarantine,
    )
