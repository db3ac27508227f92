"""The node's own status block: its epoch, and whether what runs equals what is bound.

`reconciled` becomes true once per epoch, when nothing runs whose claim is over, and stays true under that epoch. The
count of running work is told seldom: every write of a Node costs binds that compare its revision.
"""

from __future__ import annotations

from holdfast import __version__
from holdfast.agent.registration import Registration
from holdfast.agent.reports import Reports
from holdfast.model import limits
from holdfast.model.node import NodeExecution
from holdfast.model.writes import SetStatus
from holdfast.runtime.ports import Clock


class NodeReport:
    def __init__(self, registration: Registration, reports: Reports, clock: Clock) -> None:
        self._registration = registration
        self._reports = reports
        self._clock = clock
        self._reconciled_epoch = 0
        self._last: NodeExecution | None = None
        self._told_mono_s = 0.0
        self._node_uid = ""

    def say(self, *, listed: bool, zombies: int, running: int) -> None:
        lease, node = self._registration.lease, self._registration.node
        if node is None or lease.epoch == 0 or lease.fenced:
            return
        if listed and zombies == 0:
            self._reconciled_epoch = lease.epoch
        reconciled = self._reconciled_epoch == lease.epoch
        message = "" if reconciled else "waiting for the list of bindings" if not listed else f"{zombies} to be stopped"
        block = NodeExecution(
            epoch=lease.epoch, reconciled=reconciled, running=running, agent_version=__version__, message=message
        )
        now_mono_s = self._clock.monotonic()
        if self._same_but_running(block, node.uid) and now_mono_s - self._told_mono_s < limits.RESYNC_S:
            return
        self._last, self._told_mono_s, self._node_uid = block, now_mono_s, node.uid
        self._reports.put(SetStatus(kind="Node", key=node.key, uid=node.uid, blocks={"execution": block}))

    def _same_but_running(self, block: NodeExecution, node_uid: str) -> bool:
        last = self._last
        return (
            last is not None
            and node_uid == self._node_uid
            and (last.epoch, last.reconciled, last.message) == (block.epoch, block.reconciled, block.message)
        )
