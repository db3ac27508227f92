"""One tenant and anonymous clients attack a region's real server with hostile bodies. Its nodes keep their leases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import etcd_cluster

from holdfast.cell.freed_memory import MEMORY_CHECK_EVERY_S
from holdfast.client.resources import client_tls_context
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.identity.certificates import issue, make_ca
from holdfast.identity.tokens import TokenFile
from holdfast.model import limits
from holdfast.model.principal import HOLLOW_NODES, OPERATORS, REGIONS, TENANT_PREFIX
from holdfast.model.times import parse_time

ROOT = Path(__file__).parents[2]
REGION, NODES = "us-east", 20
# Longer than a node's lease and the time until the authority fences its node.
ATTACK_S = limits.NODE_LEASE_TTL_S * (1 + limits.CLOCK_DRIFT) + limits.KILL_DURATION_MAX_S + 10
# The 99th percentile of another tenant's GET during the attack. Generous: the machine may be slow.
GET_P99_MAX_S = 3.0
# Memory that the server may keep a minute after the attack: allocator slack and caches. It was 665 MB.
RSS_GROWTH_MAX_MB = 150


class RegionUnderTest:
    """A region's server process, hollow nodes, and credentials for it. The global cell is unreachable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = pki = folder / "pki"
        now_s = time.time()
        make_ca(pki, now_s=now_s)
        issue(pki, "server", "cell", now_s=now_s, server=True, client=False, dns=("localhost",), ips=("127.0.0.1",))
        issue(pki, "link", f"holdfast:region:{REGION}", (REGIONS,), now_s=now_s)
        issue(pki, "hollow", f"holdfast:hollow:{REGION}:hollow-", (HOLLOW_NODES,), now_s=now_s)
        issue(pki, "operator", "operator", (OPERATORS,), now_s=now_s)
        tokens = TokenFile(folder / "tokens.json")
        self.attacker = tokens.issue("mallory", "mallory", (f"{TENANT_PREFIX}shop",))
        self.bystander = tokens.issue("bob", "bob", (f"{TENANT_PREFIX}bank",))
        port, nowhere = etcd_cluster.free_ports(2)
        self.url = f"https://127.0.0.1:{port}"
        files = ("--tls-cert", f"{pki}/server.crt", "--tls-key", f"{pki}/server.key", "--client-ca", f"{pki}/ca.crt")
        link = ("--link-cert", f"{pki}/link.crt", "--link-key", f"{pki}/link.key")
        where = ("--state", str(folder / "state"), "--port", str(port), "--tokens", str(folder / "tokens.json"))
        (folder / "state").mkdir()
        initialize(IdentityFile(folder / "state"), REGION)
        self.processes = [
            self._start(
                "serve", "--cell", REGION, *where, *files, *link, "--global-url", f"https://127.0.0.1:{nowhere}"
            )
        ]

    def start_nodes(self) -> None:
        pki = self.pki
        own = ("--ca", f"{pki}/ca.crt", "--cert", f"{pki}/hollow.crt", "--key", f"{pki}/hollow.key")
        self.processes.append(
            self._start("hollow", "--count", str(NODES), "--region", REGION, "--zone", "a", "--url", self.url, *own)
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "holdfast.cli", *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.processes[0].pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def tls(self, user: str = "") -> Any:
        files = (f"{self.pki}/{user}.crt", f"{self.pki}/{user}.key") if user else ("", "")
        return client_tls_context(f"{self.pki}/ca.crt", *files)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[RegionUnderTest]:
    made = RegionUnderTest(tmp_path)
    yield made
    made.stop()


class Watcher:
    """Reads heartbeats, fences and response times while the attack runs."""

    def __init__(self, region: RegionUnderTest) -> None:
        self.region = region
        self.oldest_heartbeat_s = 0.0
        self.seconds: list[float] = []
        self.failed: list[str] = []
        self.fences = 0.0
        self.peak_mb = 0.0

    async def operator(self, path: str) -> str:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.region.tls("operator"))) as session,
            session.get(self.region.url + path, timeout=aiohttp.ClientTimeout(total=30)) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def heartbeat_ages(self) -> list[float]:
        nodes = json.loads(await self.operator("/api/v1/nodes"))["items"]
        beats = [c["lastHeartbeatTime"] for n in nodes for c in n["status"]["conditions"] if c["type"] == "Ready"]
        return [time.time() - parse_time(beat) for beat in beats]

    async def count_fences(self) -> float:
        lines = (await self.operator("/metrics")).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("holdfast_authority_fences_total"))

    async def watch_nodes(self) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError):
                ages = await self.heartbeat_ages()
                assert len(ages) == NODES
                self.oldest_heartbeat_s = max(self.oldest_heartbeat_s, *ages)
            self.peak_mb = max(self.peak_mb, self.region.rss_mb())
            await asyncio.sleep(0.5)

    async def read_as_bystander(self) -> None:
        headers = {"Authorization": f"Bearer {self.region.bystander}"}
        connector = aiohttp.TCPConnector(ssl=self.region.tls())
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            while True:
                began_s = time.monotonic()
                path = "/apis/holdfast.dev/v1/namespaces/bank/replicas"
                async with session.get(self.region.url + path, timeout=aiohttp.ClientTimeout(total=60)) as answer:
                    await answer.read()
                    if answer.status != 200:
                        self.failed.append(f"{answer.status} {(await answer.text())[:200]}")
                self.seconds.append(time.monotonic() - began_s)
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_hostile_bodies_cost_no_node_its_lease(region: RegionUnderTest) -> None:
    watcher = Watcher(region)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, aiohttp.ClientError, AssertionError):
                await watcher.operator("/readyz")
                break
            await asyncio.sleep(0.2)
        region.start_nodes()
        while len(await watcher.heartbeat_ages()) < NODES:
            await asyncio.sleep(0.2)
    await asyncio.sleep(limits.NODE_RENEW_EVERY_S)
    before_mb = region.rss_mb()
    watching = [asyncio.create_task(watcher.watch_nodes()), asyncio.create_task(watcher.read_as_bystander())]
    attack = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.api.hostile_clients",
        region.url,
        f"{region.pki}/ca.crt",
        region.attacker,
        str(ATTACK_S),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await asyncio.wait_for(attack.communicate(), ATTACK_S + 90)
    for task in watching:
        task.cancel()
    results = await asyncio.gather(*watching, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results), results
    answers = json.loads(printed)
    fences = await watcher.count_fences()
    # On a busy machine the last bodies are dropped late, and the check after that returns their memory.
    patience_s = time.monotonic() + 4 * MEMORY_CHECK_EVERY_S
    while (after_mb := region.rss_mb()) - before_mb >= RSS_GROWTH_MAX_MB and time.monotonic() < patience_s:
        await asyncio.sleep(0.5)
    p99_s = sorted(watcher.seconds)[int(0.99 * len(watcher.seconds))]
    figures = (
        f"{answers}; GETs {len(watcher.seconds)}, p99 {p99_s:.2f} s, worst {max(watcher.seconds):.2f} s; "
        f"oldest heartbeat {watcher.oldest_heartbeat_s:.1f} s; "
        f"RSS {before_mb:.0f} MB, peak {watcher.peak_mb:.0f} MB, after {after_mb:.0f} MB"
    )
    print(figures)
    assert sum(answers.values()) > 200, figures
    assert not [code for code in answers if code.startswith(("2", "5")) and code != "503"], figures
    assert fences == 0, f"a node was fenced; {figures}"
    assert watcher.oldest_heartbeat_s < limits.NODE_LEASE_TTL_S, f"a lease was missed; {figures}"
    assert not watcher.failed, (watcher.failed[:3], figures)
    assert p99_s < GET_P99_MAX_S, figures
    assert after_mb - before_mb < RSS_GROWTH_MAX_MB, figures
