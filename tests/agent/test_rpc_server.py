"""Agent calls over a scripted stream; tasks, logs and commands are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import TENANT, eventually, task

from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.rpc_server import AgentRpcServer
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.authorize import access_refusal
from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind
from holdfast.model.principal import Principal, from_identity


class Wire:
    """Calls put into it arrive at the agent; responses are recorded by call id."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[AgentCall] = asyncio.Queue()
        self.responses: dict[str, list[dict[str, Any]]] = {}
        self.ended: set[str] = set()
        self.listening = True

    async def agent_calls(self, node: str) -> AsyncIterator[AgentCall]:
        while True:
            yield await self.calls.get()

    async def send_response(self, node: str, call_id: str, data: bytes, *, end: bool) -> bool:
        rows = self.responses.setdefault(call_id, [])
        rows += [msgspec.json.decode(line) for line in data.splitlines() if line]
        if end:
            self.ended.add(call_id)
        return self.listening

    async def call(self, call_id: str, **arguments: Any) -> list[dict[str, Any]]:
        self.calls.put_nowait(
            AgentCall(id=call_id, arguments=AgentCallArguments(**arguments), namespace=TENANT, replica="a")
        )
        await eventually(lambda: call_id in self.ended)
        return self.responses[call_id]


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    ports = SystemPorts()
    driver = ProcessDriver(tmp_path, ports.clock)
    one = task(
        "acme_a_1", "sh", "-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.05; done", env={"WHO": "me"}
    )
    one = msgspec.structs.replace(one, replica="a")
    made = Wire()
    await driver.start(one)
    own = msgspec.structs.replace(one, resources={"cpu": 100})
    others = [msgspec.structs.replace(own, namespace="bank", workload="vault", replica=name) for name in ("s", "t")]
    server = AgentRpcServer("n1", made, (tmp_path,), ports, lambda: [(each, driver) for each in (own, *others)])
    running = asyncio.create_task(server.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await driver.stop(one.id, 0.0)
    await driver.close()


async def test_logs_call_with_tail_returns_last_lines(wire: Wire) -> None:
    await asyncio.sleep(0.4)
    rows = await wire.call("1", kind=AgentCallKind.LOGS, tail=3)
    assert len(rows) == 3 and all(row["text"].startswith("line ") and row["at"] for row in rows)


async def test_followed_logs_end_when_caller_disconnects(wire: Wire) -> None:
    wire.calls.put_nowait(
        AgentCall(
            id="2",
            arguments=AgentCallArguments(kind=AgentCallKind.LOGS, tail=0, follow=True),
            namespace=TENANT,
            replica="a",
        )
    )
    await eventually(lambda: len(wire.responses.get("2", [])) > 10)
    texts = [row["text"] for row in wire.responses["2"]]
    numbers = [int(text.split()[1]) for text in texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no line is lost or repeated"
    wire.listening = False
    await eventually(lambda: not [t for t in asyncio.all_tasks() if t.get_name() == "call:2"])


async def test_exec_runs_in_task_environment_and_returns_exit_code(wire: Wire) -> None:
    (done,) = await wire.call("3", kind=AgentCallKind.EXEC, command=("sh", "-c", "echo $WHO; exit 4"))
    assert done == {"code": 4, "output": "me"}
    (late,) = await wire.call("4", kind=AgentCallKind.EXEC, command=("sleep", "30"), timeout_seconds=0.3)
    assert "did not finish within 0.3 s" in late["error"]


async def test_logs_call_for_unknown_replica_returns_error(wire: Wire) -> None:
    wire.calls.put_nowait(
        AgentCall(id="5", arguments=AgentCallArguments(kind=AgentCallKind.LOGS), namespace=TENANT, replica="other")
    )
    await eventually(lambda: "5" in wire.ended)
    assert "no logs on node n1" in wire.responses["5"][0]["error"]


async def test_usage_for_a_tenant_names_no_replica_of_others(wire: Wire) -> None:
    own, others = await wire.call("6", kind=AgentCallKind.USAGE)
    assert (own["namespace"], own["replica"]) == (TENANT, "a")
    assert (others["namespace"], others["workload"], others["replica"]) == ("", "", "")
    assert (own["cpuRequested"], others["cpuRequested"]) == (100, 200)
    wire.calls.put_nowait(AgentCall(id="7", arguments=AgentCallArguments(kind=AgentCallKind.USAGE)))
    await eventually(lambda: "7" in wire.ended)
    assert [row["replica"] for row in wire.responses["7"]] == ["a", "s", "t"], "an operator sees the whole node"


def test_exec_is_allowed_for_operators_and_own_users_only() -> None:
    user = from_identity("dev", (f"holdfast:tenant:{TENANT}",), credential="t")
    assert access_refusal(user, "create", "replicas", "exec", TENANT, "a") is None
    assert access_refusal(user, "create", "replicas", "exec", "other", "a") is not None
    viewer = Principal(name="eye", groups=("holdfast:viewers",))
    assert access_refusal(viewer, "get", "replicas", "", TENANT, "a") is None
    assert access_refusal(viewer, "create", "replicas", "exec", TENANT, "a") is not None
    operator = Principal(name="op", groups=("holdfast:operators",), roles=frozenset({"operator"}))
    assert access_refusal(operator, "create", "replicas", "exec", TENANT, "a") is None
