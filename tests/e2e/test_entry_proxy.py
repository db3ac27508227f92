"""Entry proxies of a platform: a real HAProxy per region, kept in step by Holdfast.

A rolling restart, a drained node and a lost region; a killed HAProxy; the name server beside it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import dns.resolver
import pytest
from tests.e2e.proxy_load import ProxyLoad
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until
from tests.proxy.haproxy_program import haproxy_program

from holdfast.dns.messages import ANSWER_TTL_S as TTL_S
from holdfast.drills import outage
from holdfast.model.times import parse_time
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REPLICAS = 8
NAME, HOST = "payments/front", "front.payments.holdfast.internal"
MANIFEST: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": "front", "namespace": "payments"},
    "spec": {
        "replicas": REPLICAS,
        "template": {
            "command": ["python3", "-m", "holdfast.samples.risk_api"],
            "resources": {"cpu": "20m", "memory": "64Mi"},
            "ports": [{"name": "http"}],
            "probes": {"readiness": {"http": {"path": "/readyz"}, "periodSeconds": 0.5}},
        },
        "disruption": {"maxUnavailable": 2},
        "rollout": {"maxSurge": 2, "maxUnavailable": 0},
    },
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{os.path.dirname(haproxy_program())}{os.pathsep}{before}"
    try:
        with running_platform(tmp_path_factory.mktemp("entry") / "state", "--proxy", "all") as running:
            running.apply(MANIFEST)
            wait_until(lambda: len(running.addresses(NAME)) == REPLICAS, "all replicas serve", 120)
            yield running
    finally:
        os.environ["PATH"] = before


def proxy_port(up: RunningPlatform, region: str) -> int:
    return int(up.up_output["proxies"][region].rpartition(":")[2])


def readiness(up: RunningPlatform, region: str) -> int:
    port = Layout(up.state).load().proxy_status_port(region)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def proxy_metric(up: RunningPlatform, region: str, name: str) -> float:
    port = Layout(up.state).load().proxy_status_port(region)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def ask(up: RunningPlatform, region: str) -> dict[str, Any] | None:
    """One request by name through the region's proxy; None if it is not answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy_port(up, region), timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/", headers={"Host": HOST})
            reply = connection.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException):
            return None
    answer: dict[str, Any] | None = json.loads(body) if reply.status == 200 else None
    return answer


def serving(up: RunningPlatform) -> list[dict[str, Any]]:
    output = holdfast("endpoints", NAME, "--state", str(up.state), "-o", "json").stdout
    found: list[dict[str, Any]] = json.loads(output)["addresses"]
    return found


def region_with_replicas(up: RunningPlatform) -> str:
    regions = [address["region"] for address in serving(up)]
    return str(max(sorted(set(regions)), key=regions.count))


def test_proxy_of_each_region_answers_from_the_nearest_replicas(platform: RunningPlatform) -> None:
    with_replicas = {address["region"] for address in serving(platform)}
    for region in platform.up_output["proxies"]:
        wait_until(lambda region=region: readiness(platform, region) == 200, f"proxy of {region} is ready")  # type: ignore[misc]
        answer = wait_until(lambda region=region: ask(platform, region), f"{region} answers")  # type: ignore[misc]
        if region in with_replicas:
            assert answer["region"] == region


def test_rolling_restart_and_drained_node_lose_no_request(platform: RunningPlatform) -> None:
    region = region_with_replicas(platform)
    revision = {address["revision"] for address in serving(platform)}
    with ProxyLoad(proxy_port(platform, region), HOST) as load:
        holdfast("rollout", "restart", NAME, "--state", str(platform.state))
        completed = holdfast("rollout", "status", NAME, "--state", str(platform.state), timeout_s=400)
        assert "Complete" in completed.stdout
        restarted = sum(load.answered.values())
        node = next(address["node"] for address in serving(platform) if address["region"] == region)
        drained = holdfast("node", "drain", node, "--deadline", "120", "--state", str(platform.state), timeout_s=200)
        assert "drained" in drained.stdout
        time.sleep(1.0)
    assert not load.failed, load.failed[:5]
    assert restarted > 500 and sum(load.answered.values()) > restarted
    after = serving(platform)
    assert {address["revision"] for address in after}.isdisjoint(revision), "every replica was replaced"
    assert node not in {address["node"] for address in after}
    assert proxy_metric(platform, region, 'holdfast_proxy_reloads_total{result="applied"}') > 2
    holdfast("node", "uncordon", node, "--state", str(platform.state))


def test_killed_haproxy_is_restarted_and_serves_the_same_addresses(platform: RunningPlatform) -> None:
    region = region_with_replicas(platform)
    log = (platform.state / "logs" / f"proxy-{region}.log").read_text()
    pids = [json.loads(line)["pid"] for line in log.splitlines() if '"proxy_started"' in line]
    starts = proxy_metric(platform, region, "holdfast_proxy_starts_total")
    os.kill(pids[-1], signal.SIGKILL)
    wait_until(
        lambda: proxy_metric(platform, region, "holdfast_proxy_starts_total") > starts, "it is started again", 30
    )
    wait_until(lambda: ask(platform, region), "it answers", 30)
    manager = platform.pid(f"proxy-{region}")
    os.kill(manager, signal.SIGKILL)
    assert ask(platform, region), "HAProxy serves while its manager is down"
    wait_until(lambda: platform.pid(f"proxy-{region}") != manager, "the manager is started again", 30)
    wait_until(lambda: readiness(platform, region) == 200, "the manager is ready", 30)
    log = (platform.state / "logs" / f"proxy-{region}.log").read_text()
    assert log.count('"proxy_adopted"') == 1, "and adopted HAProxy"


def resolver(up: RunningPlatform, *, caches: bool) -> dns.resolver.Resolver:
    """A stub resolver of the platform's name server over UDP; with `caches` it keeps answers for their TTL."""
    host, _, port = str(up.up_output["dns"]).rpartition(":")
    made = dns.resolver.Resolver(configure=False)
    made.nameservers, made.port, made.lifetime = [host], int(port), 5.0
    made.use_edns(0, 0, 1232)
    made.cache = dns.resolver.Cache() if caches else None
    return made


def dns_ports(asked: dns.resolver.Resolver) -> set[int]:
    """Ports of the workload's SRV records in all regions."""
    return {int(record.port) for record in asked.resolve(f"_http._tcp.{HOST}", "SRV")}


def region_health(up: RunningPlatform, region: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(up.kubectl("get", "region", region, "-o", "json"))["status"]["health"]
    return found


def test_names_and_proxy_follow_a_lost_region_within_the_ttl(platform: RunningPlatform) -> None:
    lost = region_with_replicas(platform)
    ports_of_lost = {address["ports"]["http"] for address in serving(platform) if address["region"] == lost}
    direct, cached = resolver(platform, caches=False), resolver(platform, caches=True)
    assert ports_of_lost <= dns_ports(direct) and ports_of_lost <= dns_ports(cached)
    assert direct.resolve(f"_http._tcp.{HOST}", "SRV").rrset.ttl == TTL_S  # type: ignore[union-attr]
    layout = Layout(platform.state)
    processes = outage.process_names(outage.region_plan(layout.load(), lost))
    outage.hold_down(layout, processes)
    try:
        with ProxyLoad(proxy_port(platform, lost), HOST) as load:
            outage.kill_processes(layout, processes)
            wait_until(
                lambda: (ask(platform, lost) or {}).get("region", lost) != lost, "its proxy uses the standby region", 30
            )
            assert region_health(platform, lost)["state"] != "Lost", "before the region is declared Lost"
            time.sleep(3.0)
        assert len(load.failed) <= load.clients, "at most the requests that a killed replica had begun to answer"
        last_direct = last_cached = time.time()
        deadline = time.time() + 150
        while ports_of_lost & (dns_ports(cached) | dns_ports(direct)):
            now = time.time()
            last_direct = now if ports_of_lost & dns_ports(direct) else last_direct
            last_cached = now if ports_of_lost & dns_ports(cached) else last_cached
            assert now < deadline, "the names still lead to the lost region"
            time.sleep(0.05)
        health = region_health(platform, lost)
        assert health["state"] == "Lost"
        declared = parse_time(health["since"])
        assert last_direct - declared < TTL_S, "the name server follows the serving state"
        assert last_cached - last_direct <= TTL_S + 0.2, "and a client that caches follows within the TTL"
        found = [ask(platform, region) for region in platform.up_output["proxies"]]
        assert all(answer is not None and answer["region"] != lost for answer in found)
    finally:
        outage.allow_restart(layout, processes)
    wait_until(lambda: region_health(platform, lost)["state"] == "Healthy", f"{lost} is healthy again", 180)
