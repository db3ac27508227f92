"""A real API server in its own process: `python cell_process.py FOLDER CELL`. Prints one line when it listens.

Store, gate, application and TLS are those of production. There are no controllers; tests play their part.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from holdfast.foundation.log import configure
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.certificates import issue, make_ca
from holdfast.identity.tokens import TokenFile
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import CONTROLLERS, OPERATORS, TENANT_PREFIX, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create
from holdfast.server.app import Application
from holdfast.server.console import ConsoleService
from holdfast.server.listener import Listener, serve
from holdfast.server.tls import TlsFiles
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

USERS = {
    "operator": ("ada", (OPERATORS,)),
    "user": ("tim", (f"{TENANT_PREFIX}shop",)),
    "controller": ("holdfast:controller:workload-status", (CONTROLLERS,)),
    "assign": ("holdfast:controller:assign", (CONTROLLERS,)),
    "collect": ("holdfast:controller:collect", (CONTROLLERS,)),
}


async def first_objects(gate: Gate) -> None:
    """Initial objects of a platform: tenants, a priority class, a quota and a region."""
    operator = LocalClient(gate, from_identity("setup", (OPERATORS,), credential="setup"))
    await operator.commit(
        [
            Create(Tenant(metadata=ObjectMeta(name="default"))),
            Create(Tenant(metadata=ObjectMeta(name="shop"))),
            Create(PriorityClass(metadata=ObjectMeta(name="standard"), spec=PriorityClassSpec(tenants=("*",)))),
            Create(Region(metadata=ObjectMeta(name="us-east"), spec=RegionSpec(zones=("us-east-a",)))),
        ]
    )
    for tenant in ("default", "shop"):
        spec = QuotaSpec(hard={"cpu": "1000", "memory": "1000Gi"})
        await operator.commit([Create(Quota(metadata=ObjectMeta(name="quota", namespace=tenant), spec=spec))])


async def main(folder: Path, cell: str) -> None:
    configure(cell=cell, component="api", level="debug")  # logs every request
    ports = SystemPorts()
    now_s = ports.clock.now()
    pki = folder / "pki"
    ca = make_ca(pki, now_s=now_s)
    server = issue(
        pki, "server", "holdfast:api:global", now_s=now_s, dns=("localhost",), ips=("127.0.0.1",), server=True
    )
    credentials = {}
    for name, (user, groups) in USERS.items():
        made = issue(pki, name, user, groups, now_s=now_s)
        credentials[name] = {"certificate": str(made.certificate), "key": str(made.key)}
    tokens = TokenFile(folder / "tokens.json")
    token = tokens.issue("tim", "tim", USERS["user"][1])
    store, volatile = SqliteStore(folder / "cell.db"), MemoryStore()
    objects = Objects(store, volatile)
    await objects.start()
    gate = Gate(cell, objects, ports)
    if cell == "global":
        await first_objects(gate)
    authenticator = Authenticator(cell, ports, tokens=tokens)
    console = ConsoleService(objects, authenticator, ports, None) if cell == "global" else None
    app = Application(cell, objects, gate, authenticator, ports, console=console)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def started(listener: Listener) -> None:
        found = {"port": listener.port, "ca": str(ca.certificate), "token": token, "credentials": credentials}
        print(json.dumps(found), flush=True)

    await serve(
        app, "127.0.0.1", 0, TlsFiles(server.certificate, server.key, ca.certificate), stop=stop, started=started
    )
    await gate.close()
    await objects.close()
    await store.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2]))
