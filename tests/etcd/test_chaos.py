"""A region of many processes on a three-member cluster, under faults. `make prove` runs it three times."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.etcd.fleet import REGION, Fleet
from tests.etcd.linear import NEVER, UNKNOWN, Call, Read, Write, linearizable, register
from tests.etcd_cluster import Cluster

from holdfast.model.errors import Ambiguous, Conflict, Fault
from holdfast.sim.recorded_history import check_histories, read_etcd, read_sqlite
from holdfast.store.contract import Compare, Put, Txn
from holdfast.store.etcd import wire
from holdfast.store.etcd.store import EtcdStore, open_store
from holdfast.store.etcd.target import EtcdTarget

ROUNDS = int(os.environ.get("HOLDFAST_CHAOS_ROUNDS", "3" if os.environ.get("HOLDFAST_PROVE") else "1"))
NODES = 200
HEALED_S = 90.0
"""How long after healing everything must be placed and serve."""


class Client:
    """Writes and reads a few keys, and records each call with its times and response."""

    def __init__(self, store: EtcdStore, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self._name = seed
        self.history: dict[str, list[Call]] = {}
        self.gaps: list[float] = []

    async def run(self, ended: asyncio.Event) -> None:
        last = time.monotonic()
        for number in itertools.count():
            if ended.is_set():
                return
            key = f"/linear/{self._chance.randrange(400)}"
            if await self._step(key, f"{self._name}.{number}"):
                self.gaps.append(time.monotonic() - last)
                last = time.monotonic()
            await asyncio.sleep(self._chance.uniform(0.01, 0.06))

    async def _step(self, key: str, value: str) -> bool:
        """Returns whether a write was acknowledged."""
        sent = time.monotonic()
        try:
            now = await self._store.get(key)
        except Fault:
            return False
        held = now.value.decode() if now is not None else ""
        self._note(key, Call(Read(), held, sent, time.monotonic()))
        if self._chance.random() < 0.4:
            return False
        sent = time.monotonic()
        txn = Txn((Compare(key, now.revision if now is not None else 0),), (Put(key, value.encode()),))
        try:
            await self._store.commit(txn)
        except Conflict:
            self._note(key, Call(Write(value, held), False, sent, time.monotonic()))
            return False
        except Ambiguous:
            self._note(key, Call(Write(value, held), UNKNOWN, sent, NEVER))
            return False
        except Fault:
            return False  # definitely refused: nothing happened
        self._note(key, Call(Write(value, held), True, sent, time.monotonic()))
        return True

    def _note(self, key: str, call: Call) -> None:
        self.history.setdefault(key, []).append(call)


def manifests() -> list[tuple[str, dict[str, Any]]]:
    api = {"apiVersion": "holdfast.dev/v1"}
    base = "/apis/holdfast.dev/v1"
    return [
        (f"{base}/tenants", {**api, "kind": "Tenant", "metadata": {"name": "shop"}}),
        (f"{base}/priorityclasses", {**api, "kind": "PriorityClass", "metadata": {"name": "standard"}}),
        (
            f"{base}/priorityclasses",
            {
                **api,
                "kind": "PriorityClass",
                "metadata": {"name": "urgent"},
                "spec": {"priority": 1000, "mayPreempt": True},
            },
        ),
        (
            f"{base}/regions",
            {**api, "kind": "Region", "metadata": {"name": REGION}, "spec": {"zones": [f"{REGION}-a", f"{REGION}-b"]}},
        ),
        (
            f"{base}/namespaces/shop/quotas",
            {
                **api,
                "kind": "Quota",
                "metadata": {"name": "quota", "namespace": "shop"},
                "spec": {"hard": {"cpu": "400", "memory": "4000Gi"}},
            },
        ),
    ]


def workload(name: str, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "replicas": replicas,
            "priorityClassName": "standard",
            "template": {"driver": "hollow", "command": ["work"], "resources": {"cpu": "1", "memory": "1Gi"}},
        },
    }


async def apply(fleet: Fleet, path: str, body: dict[str, Any]) -> bool:
    """Creates the object, or finds that an attempt with a lost response did."""
    try:
        await fleet.ask("global", path, body)
    except RuntimeError as error:
        if "AlreadyExists" not in str(error):
            raise
    return True


async def serving(fleet: Fleet, wanted: int) -> bool:
    found = await fleet.ask("front", "/apis/holdfast.dev/v1/replicas")
    phases = [item.get("status", {}).get("execution", {}).get("phase", "") for item in found["items"]]
    return (
        phases.count("Ready") + phases.count("Running") >= wanted
        or sum(bool(item.get("status", {}).get("execution", {}).get("ready")) for item in found["items"]) >= wanted
    )


async def all_nodes(fleet: Fleet, wanted: int) -> bool:
    return len((await fleet.ask("front", "/apis/holdfast.dev/v1/nodes"))["items"]) >= wanted


async def lease(fleet: Fleet, name: str, where: str = "front") -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/{name}"
    found: dict[str, Any] = await fleet.ask(where, path)
    return found


async def alarm(fleet: Fleet, action: int) -> None:
    """Raises or clears NOSPACE, as a member with an exhausted quota does."""
    async with grpc.aio.insecure_channel(fleet.cluster.endpoints[0].partition("://")[2]) as channel:
        call = channel.unary_unary(
            wire.path_of("Alarm"),
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=wire.response_class("Alarm").FromString,
        )
        status = channel.unary_unary(
            wire.path_of("Status"),
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=wire.response_class("Status").FromString,
        )
        member = (await status(wire.StatusRequest(), timeout=5)).header.member_id
        await call(wire.AlarmRequest(action=action, memberID=member, alarm=wire.ALARM_NOSPACE), timeout=5)


async def faults(fleet: Fleet) -> dict[str, float]:
    """Every fault in turn, each healed before the next."""
    leading = fleet.leader_of("authority", await lease(fleet, "authority"))
    cluster = fleet.cluster

    async def etcd_leader_killed() -> None:
        member = await asyncio.to_thread(cluster.leader)
        member.kill()
        await asyncio.sleep(4)
        member.start()

    async def api_killed() -> None:
        fleet.signal("api-1", signal.SIGKILL)
        await asyncio.sleep(2)
        fleet.run("api-1")

    async def scheduler_and_controllers_killed() -> None:
        for name in ("s-1", "c-1"):
            fleet.signal(name, signal.SIGKILL)
        await asyncio.sleep(3)
        for name in ("s-1", "c-1"):
            fleet.run(name)

    async def schedulers_killed_between_reserve_and_bind() -> None:
        await killed_between_reserve_and_bind(fleet)

    async def authority_paused_past_its_lease() -> None:
        leader = fleet.leader_of("authority", await lease(fleet, "authority")) or leading
        fleet.signal(leader, signal.SIGSTOP)
        await asyncio.sleep(22)
        fleet.signal(leader, signal.SIGCONT)
        log = fleet.folder / f"{leader}.log"
        await fleet.until("the paused leader to notice", partial(_has, log, b"election_lost"), 20)

    async def api_cut_off_from_etcd() -> None:
        for wire_ in fleet.wires["api-2"]:
            wire_.cut()
        await asyncio.sleep(6)
        for wire_ in fleet.wires["api-2"]:
            wire_.heal()

    async def etcd_refuses_writes() -> None:
        await alarm(fleet, 1)
        await asyncio.sleep(4)
        await alarm(fleet, wire.ALARM_DEACTIVATE)

    healed: dict[str, float] = {}
    wanted = 0
    for number, fault in enumerate(
        (
            etcd_leader_killed,
            api_killed,
            scheduler_and_controllers_killed,
            schedulers_killed_between_reserve_and_bind,
            authority_paused_past_its_lease,
            api_cut_off_from_etcd,
            etcd_refuses_writes,
        )
    ):
        name = f"w-{int(time.time()) % 100000}-{number}"
        wanted += 20
        path = "/apis/holdfast.dev/v1/namespaces/shop/workloads"
        await fleet.until("the workload", partial(apply, fleet, path, workload(name, 20)), 20)
        await fault()
        known = len((await everything(fleet))["items"])
        healed[fault.__name__] = await fleet.until(
            f"all to serve after {fault.__name__}", partial(serving, fleet, max(wanted, known)), HEALED_S
        )
        print(f"{fault.__name__}: everything served {healed[fault.__name__]:.1f} s after healing", flush=True)
    return healed


async def killed_between_reserve_and_bind(fleet: Fleet) -> None:
    """Urgent work preempts other work; while its claims are reserved and not yet bound, all schedulers are killed."""
    shop = "/apis/holdfast.dev/v1/namespaces/shop/workloads"
    mark = int(time.time()) % 100000
    fleet.start_hollow(f"apart-{mark}", 2, "--prefix", f"hollow-{mark}-", "--label", f"apart=n{mark}")
    await fleet.until("two more nodes", partial(_labelled, fleet, f"n{mark}"), 30)
    for name, replicas, urgent in ((f"low-{mark}", 1, False), (f"high-{mark}", 2, True)):
        body = workload(name, replicas)
        body["spec"]["priorityClassName"] = "urgent" if urgent else "standard"
        body["spec"]["placement"] = {"nodeSelector": {"apart": f"n{mark}"}}
        body["spec"]["template"]["resources"]["cpu"] = "3"
        await fleet.until(name, partial(apply, fleet, shop, body), 20)
        if not urgent:
            await fleet.until(f"{name} to run", partial(_placed, fleet, name, replicas), 30)
    deadline = time.monotonic() + 30
    while not await _reserved(fleet, f"high-{mark}"):
        assert time.monotonic() < deadline, "no unbound reservation was observed"
        await asyncio.sleep(0.02)
    for name in ("s-1", "s-2"):
        fleet.signal(name, signal.SIGKILL)
    await asyncio.sleep(3)
    for name in ("s-1", "s-2"):
        fleet.run(name)
    await fleet.until("the urgent work to be bound", partial(_placed, fleet, f"high-{mark}", 2), HEALED_S)
    await fleet.ask("global", f"{shop}/low-{mark}", method="DELETE")
    await fleet.until("the other work to be gone", partial(_placed, fleet, f"low-{mark}", 0), HEALED_S)


async def _reserved(fleet: Fleet, workload_name: str) -> bool:
    found = await fleet.ask("front", "/apis/holdfast.dev/v1/reservations")
    waiting = ("Nominated", "Firm")
    return any(
        item["spec"].get("workload") == workload_name and item.get("status", {}).get("phase") in waiting
        for item in found["items"]
    )


async def _placed(fleet: Fleet, workload_name: str, wanted: int) -> bool:
    """Whether the workload has this many replicas, all of them bound."""
    found = (await fleet.ask("front", "/apis/holdfast.dev/v1/replicas"))["items"]
    own = [item for item in found if item["spec"]["workload"] == workload_name]
    return len(own) == wanted and all(item["status"].get("placement", {}).get("binding") for item in own)


async def _labelled(fleet: Fleet, value: str) -> bool:
    found = (await fleet.ask("front", "/apis/holdfast.dev/v1/nodes"))["items"]
    return len([item for item in found if item["metadata"].get("labels", {}).get("apart") == value]) == 2


async def _has(log: Path, text: bytes) -> bool:
    return text in log.read_bytes()


async def everything(fleet: Fleet) -> Any:
    found: list[Any] = []

    async def listed() -> bool:
        found.append(await fleet.ask("front", "/apis/holdfast.dev/v1/replicas"))
        return True

    await fleet.until("a list of replicas", listed, 60)
    return found[-1]


async def check_history(store: EtcdStore, folder: Path) -> str:
    """Checks S1 to S10 at every commit of both cells, from their complete histories and audit logs."""
    region = await read_etcd(REGION, store)
    verdict = check_histories([read_sqlite("global", folder / "global" / "store.sqlite"), region])
    assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))
    assert not verdict.unattributed, "the audit log is incomplete"
    left = {entry.key for entry in (await store.range("")).entries}
    bound = sum(key.startswith("/bindings/") for key in left)
    replicas = sum(key.startswith("/replicas/") for key in left)
    assert bound == replicas >= 120 * ROUNDS, (bound, replicas)
    return str(verdict)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900 * ROUNDS)
async def test_region_survives_faults_of_all_components(own_cluster: Cluster, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, own_cluster)
    ended = asyncio.Event()
    clients: list[Client] = []
    stores: list[EtcdStore] = []
    try:
        await fleet.start(NODES)
        for path, body in manifests():
            await fleet.until(path, partial(apply, fleet, path, body), 60)

        await fleet.until("the nodes", partial(all_nodes, fleet, NODES), 120)
        for seed in range(3):
            stores.append(await open_store("linear", EtcdTarget(endpoints=own_cluster.endpoints)))
            clients.append(Client(stores[-1], seed))
        working = [asyncio.create_task(client.run(ended)) for client in clients]
        for _ in range(ROUNDS):
            await faults(fleet)
        ended.set()
        await asyncio.gather(*working)
        await check_clients(clients, stores[0])
        region = await open_store(REGION, EtcdTarget(endpoints=own_cluster.endpoints))
        stores.append(region)
        verdict = await check_history(region, tmp_path)
        worst = max(gap for client in clients for gap in client.gaps)
        print(f"the whole history: {verdict}; worst write gap of a client {worst:.1f} s", flush=True)
    finally:
        ended.set()
        for store in stores:
            await store.close()
        await fleet.end()


async def check_clients(clients: list[Client], store: EtcdStore) -> None:
    """One order per key explains every response, and no acknowledged write is lost (S9)."""
    keys = sorted({key for client in clients for key in client.history})
    operations = 0
    for key in keys:
        history = [call for client in clients for call in client.history.get(key, [])]
        now = await store.get(key)
        end = time.monotonic()
        held = now.value.decode() if now is not None else ""
        assert linearizable([*history, Call(Read(), held, end, end)], "", register), (key, history)
        operations += len(history)
    print(f"{operations} operations on {len(keys)} keys are linearizable", flush=True)
