"""CPU time of one commit in the gate of a global cell, on a store in memory and without a network.

A Workload is created as a user does it, its status is written, and its Assignment is created. `post_us` is the whole
request of a user who posts a Workload: routing, authorization, decoding, the commit and the response. Each figure is
the best of several rounds: other load on the machine makes a round slower, never faster. So a change of a few per cent
shows on a busy machine too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from bench.load import workload_body, workloads_path
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.identity.authenticate import Authenticator
from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, ObjectMeta
from holdfast.model.principal import OPERATORS, TENANT_PREFIX, Principal, controller, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Summary, Workload, WorkloadSpec
from holdfast.model.writes import Create, SetStatus, Write
from holdfast.server.app import Application
from holdfast.server.request import UpgradedStream
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

TENANT = "bench"
ROUNDS = 12
COMMITS = 400
"""Commits of each sort per round."""
_TEMPLATE = Template(command=("serve",), resources={"cpu": "100m", "memory": "500Mi"})
_PENDING = Condition("Serving", "False", "NoneServing", "0 of 1 replicas serve")


def _create(name: str) -> Write:
    return Create(Workload(ObjectMeta(name=name, namespace=TENANT), WorkloadSpec(template=_TEMPLATE)))


def _status(item: Workload) -> Write:
    blocks = {"summary": Summary(replicas=1, assigned=1)}
    return SetStatus("Workload", item.key, item.uid, blocks=blocks, conditions=(_PENDING,), observed_generation=1)


def _assign(item: Workload) -> Write:
    name = item.metadata.name
    spec = AssignmentSpec(name, item.uid, "bench", "1", _TEMPLATE, replicas=1, epoch=1)
    return Create(Assignment(ObjectMeta(name=f"{name}.bench.normal", namespace=TENANT), spec))


async def _commit_each(gate: Gate, who: Principal, writes: Sequence[Write]) -> float:
    """CPU time of one commit in microseconds."""
    began = time.process_time()
    for write in writes:
        await gate.commit(who, [write])
    return (time.process_time() - began) / len(writes) * 1e6


class _Exchange:
    """What the listener gives a request, without a connection."""

    body_complete = True
    code = 0

    async def respond(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None:
        self.code = code

    def upgrade(self, protocol: str, headers: Iterable[tuple[bytes, bytes]]) -> UpgradedStream:
        raise NotImplementedError


_CERTIFICATE = {
    "subject": ((("commonName", "bench-user"),), (("organizationName", f"{TENANT_PREFIX}{TENANT}"),)),
    "serialNumber": "01",
    "notBefore": "Jan  1 00:00:00 2020 GMT",
    "notAfter": "Jan  1 00:00:00 2099 GMT",
}


def _post(name: str) -> tuple[dict[str, Any], bytes, _Exchange]:
    """The ASGI scope of a POST as the listener makes it, and its body."""
    body, exchange, path = workload_body(name, 1), _Exchange(), workloads_path(TENANT)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "headers": headers,
        "holdfast.peer_certificate": _CERTIFICATE,
        "holdfast.exchange": exchange,
    }
    return scope, body, exchange


async def _post_each(app: Application, names: Sequence[str]) -> float:
    """CPU time of one POST in microseconds."""
    posts = [_post(name) for name in names]
    inbox: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": inbox.pop(), "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(f"sent in parts: {message}")

    began = time.process_time()
    for scope, body, _ in posts:
        inbox.append(body)
        await app(scope, receive, send)
    took_s = time.process_time() - began
    refused = [exchange.code for *_, exchange in posts if exchange.code != 201]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(posts)} posts were refused (first code: {refused[0]})")
    return took_s / len(posts) * 1e6


async def run(rounds: int = ROUNDS, commits: int = COMMITS) -> dict[str, float]:
    objects = Objects(MemoryStore(), MemoryStore())
    await objects.start()
    gate = Gate("global", objects, SystemPorts())
    user = from_identity("operator", (OPERATORS,), credential="certificate")
    progress, assign = controller("workload-status", cell="global"), controller("assign", cell="global")
    priority = PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(tenants=("*",)))
    await gate.commit(user, [Create(Tenant(ObjectMeta(name=TENANT))), Create(priority)])
    app = Application("global", objects, gate, Authenticator("global", gate.ports), gate.ports)
    taken: dict[str, list[float]] = {"create_us": [], "status_us": [], "assignment_us": [], "post_us": []}
    for number in range(rounds):
        names = [f"w{number}-{at}" for at in range(commits)]
        taken["create_us"].append(await _commit_each(gate, user, [_create(name) for name in names]))
        stored = [item for name in names if isinstance(item := objects.get(kind_of(Workload), TENANT, name), Workload)]
        taken["status_us"].append(await _commit_each(gate, progress, [_status(item) for item in stored]))
        taken["assignment_us"].append(await _commit_each(gate, assign, [_assign(item) for item in stored]))
        taken["post_us"].append(await _post_each(app, [f"p{name}" for name in names]))
    await gate.close()
    await objects.close()
    return {name: round(min(each), 1) for name, each in taken.items()}
