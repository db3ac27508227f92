"""The example application `shop` on one platform: every part works, and a lost region does not stop the web service."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout
from holdfast.samples.shop_api import receipt
from holdfast.samples.shop_dns import NoAnswer, Target, lookup, request

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

SHOP = ROOT / "examples" / "shop"
OBJECTIVE_S = yaml.safe_load((SHOP / "04-web.yaml").read_text())["spec"]["recovery"]["deadlineSeconds"]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("shop") / "state", "--example", "shop") as up:
        yield up


def targets(up: RunningPlatform) -> list[Target]:
    try:
        return sorted(lookup("web", "shop", up.up_output["dns"]))
    except NoAnswer:
        return []


def ask_web(up: RunningPlatform, path: str) -> dict[str, Any] | None:
    """One request by DNS name, as a client makes it: the replicas in turn, until one answers. None: none does."""
    for target in targets(up):
        try:
            return request(target.address, target.port, path)
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return None


def regions_that_answer(up: RunningPlatform) -> set[str]:
    found = set()
    for target in targets(up):
        try:
            found.add(str(request(target.address, target.port, "/")["region"]))
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return found


def ask_until_answered(up: RunningPlatform, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = wait_until(lambda: ask_web(up, path), f"the web service answers {path}")
    return answer


def secret_key() -> str:
    (secret,) = [d for d in yaml.safe_load_all((SHOP / "02-settings.yaml").read_text()) if d["kind"] == "Secret"]
    return str(secret["stringData"]["key"])


def workload(up: RunningPlatform, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(up.kubectl("-n", "shop", "get", "workload", name, "-o", "json"))
    return found


def logs(up: RunningPlatform, name: str, *more: str) -> str:
    return holdfast("logs", f"shop/{name}", *more, "--state", str(up.state), check=False).stdout


@contextlib.contextmanager
def region_lost_while_it_serves(up: RunningPlatform) -> Iterator[str]:
    """Loses a region that answers. Within its recovery objective the web service has all replicas in one other region,
    and clients get answers all the time. After the block the region may return."""
    layout = Layout(up.state)
    lost = ask_until_answered(up, "/")["region"]
    processes = outage.process_names(outage.region_plan(layout.load(), lost))
    outage.hold_down(layout, processes)
    outage.kill_processes(layout, processes)

    last_answer = began = time.monotonic()
    longest_gap_s = 0.0
    recovered = False
    while not recovered:
        answer = ask_web(up, "/buy/3")
        now = time.monotonic()
        longest_gap_s = max(longest_gap_s, now - last_answer)
        assert longest_gap_s < OBJECTIVE_S, "no answer for the whole recovery objective"
        if answer is not None:
            assert answer["region"] != lost and answer["answeredBy"]["region"] != lost
            last_answer = now
        serving = [t.region for t in targets(up)]
        recovered = lost not in serving and any(serving.count(region) >= 3 for region in serving)
        assert now - began < OBJECTIVE_S, f"three replicas do not serve in one region: {serving}"
        time.sleep(0.2)
    yield lost
    outage.allow_restart(layout, processes)


def test_every_part_of_the_shop_works(platform: RunningPlatform) -> None:
    served = {w["name"]: w["serving"] for w in platform.status()["workloads"]}
    assert (served["web"], served["api"], served["worker"]) == (4, 4, 1) and "risk-api" not in served
    wait_until(lambda: len({t.region for t in targets(platform)}) == 2, "the names have replicas of two regions")

    page = ask_until_answered(platform, "/")
    assert page["greeting"] == "Welcome to the shop" and page["products"]["tea"] == 550, (
        "settings and file of ConfigMaps"
    )
    assert page["answeredBy"]["region"] == page["region"], "the API of the own region is asked first"
    order = ask_until_answered(platform, "/buy/7")
    assert order["receipt"] == receipt(secret_key().encode(), 7, order["product"], order["total"])

    wait_until(lambda: re.search(r"[1-9]\d* invoices", logs(platform, "worker", "-c", "count")), "invoices are counted")
    assert "prepared" in logs(platform, "worker", "-c", "prepare")
    run = holdfast("cron", "run", "shop/nightly-report", "--wait", "--state", str(platform.state))
    advised = re.search(r"next: holdfast logs shop/(\S+)", run.stderr)
    assert advised is not None and "report: 8 products" in logs(platform, advised[1])
    several = ("exec", "shop/api", "--state", str(platform.state), "--", "sh", "-c", "echo a; echo b")
    assert "-- sh -c 'echo a; echo b'" in holdfast(*several, check=False).stderr, "the advice can be pasted"

    wait_until(
        lambda: workload(platform, "reindex")["status"]["summary"].get("succeededIndexes") == "0-3", "all indexes"
    )
    assert set(re.findall(r"index (\d) of 4", logs(platform, "reindex"))) == {"0", "1", "2", "3"}
    written = [*(platform.state / "logs").iterdir(), *platform.state.glob("agents/*/tasks/*/*.log")]
    assert not [str(p) for p in written if p.is_file() and secret_key().encode() in p.read_bytes()]


def test_web_keeps_answering_while_a_region_is_lost_and_returns(platform: RunningPlatform) -> None:
    prices = {"milk": 130, "tea": 560}
    change = json.dumps({"data": {"catalog.json": json.dumps(prices)}})
    platform.kubectl("-n", "shop", "patch", "configmap", "catalog", "--type", "merge", "-p", change)
    with region_lost_while_it_serves(platform) as lost:
        pass
    wait_until(lambda: lost in regions_that_answer(platform), f"{lost} answers again", 180)
    wait_until(lambda: (ask_web(platform, "/") or {}).get("products") == prices, "the changed file is used everywhere")
