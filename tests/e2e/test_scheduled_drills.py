"""Drills on a schedule and `holdfast maintenance`, on a real platform: who starts, who does not, and who is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.e2e.test_notifications import KEY, Receiver, receiving
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until

from holdfast.platform.drill_schedule import DrillSchedule
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "region-loss-us-east"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("scheduled") / "state") as running:
        meta = {"name": "hook", "namespace": "payments"}
        key = {"signingKey": KEY.decode()}
        running.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": key})
        yield running


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, platform: RunningPlatform) -> Iterator[Receiver]:
    """Gets events of every type."""
    with receiving(tmp_path_factory.mktemp("everything"), "everything") as found:
        platform.apply(found.spec(secret={"tenant": "payments", "name": "hook"}))
        yield found


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory, platform: RunningPlatform) -> Iterator[Receiver]:
    with receiving(tmp_path_factory.mktemp("receiver"), "drills") as found:
        secret = {"tenant": "payments", "name": "hook"}
        platform.apply(found.spec(types=["DrillFailed"], secret=secret))
        yield found


def command(platform: RunningPlatform, *words: str, check: bool = True) -> str:
    done = holdfast(*words, "--state", str(platform.state), check=check)
    return done.stdout + done.stderr


def history(platform: RunningPlatform) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        holdfast("drill", "history", "--state", str(platform.state), "-o", "json").stdout
    )
    return found


def outcome(platform: RunningPlatform) -> str:
    done = holdfast("drill", "schedule", "list", "--state", str(platform.state), "-o", "json").stdout
    (entry,) = json.loads(done)
    return str((entry["last"] or {}).get("outcome", ""))


def has_states(receiver: Receiver, kind: str, states: set[str]) -> bool:
    return {body["data"]["state"] for body in receiver.bodies(kind)} == states


def add_schedule(platform: RunningPlatform) -> None:
    """Due at the next full minute."""
    words = ("drill", "schedule", "add", "region-loss", "--region", "us-east", "--cron", "* * * * *")
    assert "next at" in command(platform, *words)


def remove_schedule(platform: RunningPlatform) -> None:
    command(platform, "drill", "schedule", "remove", NAME)


def all_backed(platform: RunningPlatform) -> bool:
    promises = json.loads(holdfast("drill", "promises", "--state", str(platform.state), "-o", "json").stdout)
    return bool(promises) and all(promise["backed"] for promise in promises)


def test_maintenance_of_a_node_drains_it_and_ends_by_command(platform: RunningPlatform) -> None:
    words = ("--region", "eu-west", "--node", "eu-west-1", "--for", "1h", "--reason", "new disk", "--name", "disk")
    assert "maintenance disk" in command(platform, "maintenance", "start", *words)

    def is_draining() -> bool:
        node = json.loads(
            platform.kubectl("--context", "eu-west", "get", "node.v1.holdfast.dev", "eu-west-1", "-o", "json")
        )
        return bool(node["spec"].get("drain"))

    wait_until(is_draining, "the node is drained")
    listed = command(platform, "maintenance", "list")
    assert all(text in listed for text in ("disk", "eu-west-1", "Active", "new disk"))
    assert "ended" in command(platform, "maintenance", "end", "disk")
    wait_until(lambda: not is_draining(), "the node takes work again")
    assert "disk" not in command(platform, "maintenance", "list")


def test_maintenance_of_an_unknown_place_is_refused(platform: RunningPlatform) -> None:
    words = ("--for", "1h", "--reason", "x")
    for place in (("--region", "atlantis"), ("--region", "eu-west", "--zone", "eu-west-z")):
        done = holdfast("maintenance", "start", *place, *words, "--state", str(platform.state), check=False)
        assert done.returncode == 2
        assert "expected one of" in done.stderr


def test_scheduled_drill_waits_for_maintenance_and_then_proves_the_promises(
    platform: RunningPlatform, receiver: Receiver, everything: Receiver
) -> None:
    wait_until(lambda: all_backed(platform), "every promise is backed", 120)
    command(
        platform,
        "maintenance",
        "start",
        "--region",
        "eu-west",
        "--for",
        "1h",
        "--reason",
        "power",
        "--no-drain",
        "--name",
        "power",
    )
    wait_until(lambda: "Active" in command(platform, "maintenance", "list"), "the window is active")
    add_schedule(platform)
    wait_until(lambda: outcome(platform) == "NotStarted", "the drill is left out", 90)
    remove_schedule(platform)
    (entry,) = history(platform)
    assert "maintenance power of eu-west" in entry["notStarted"]
    assert "not started" in command(platform, "drill", "history")
    command(platform, "maintenance", "end", "power")

    before = platform.kubectl("get", "recoverybudgets")
    assert "never" in before.lower()
    wait_until(lambda: all_backed(platform), "every promise is backed", 120)
    add_schedule(platform)
    wait_until(lambda: outcome(platform) == "Started", "the drill is started by its schedule", 90)
    remove_schedule(platform)
    wait_until(lambda: history(platform)[0]["drill"] == "region-loss" and len(history(platform)) == 2, "it ends", 400)
    assert history(platform)[0]["passed"], history(platform)[0]
    budgets = json.loads(platform.kubectl("get", "recoverybudgets", "-o", "json"))["items"]
    proofs = [item["status"]["lastProven"] for item in budgets if item.get("status", {}).get("lastProven")]
    assert proofs
    assert all(proof["region"] == "us-east" for proof in proofs)
    assert not receiver.requests()  # neither was a failure
    for kind, states in {
        "RegionLost": {"Raised", "Resolved"},
        "RecoveryStarted": {"Occurred"},
        "Recovered": {"Occurred"},
    }.items():
        wait_until(partial(has_states, everything, kind, states), f"{kind} is announced", 60)
        subjects = {body["data"]["subject"]["kind"] for body in everything.bodies(kind)}
        assert subjects == {"Region" if kind == "RegionLost" else "Recovery"}
    assert not everything.bodies("RecoveryMissed")


def test_scheduled_drill_on_an_unhealthy_fleet_does_not_start_and_people_are_told(
    platform: RunningPlatform, receiver: Receiver
) -> None:
    region = platform.pid("cell-eu-central")
    os.kill(region, signal.SIGSTOP)
    try:
        wait_until(lambda: "Healthy" not in platform.kubectl("get", "region", "eu-central"), "it is not healthy")
        add_schedule(platform)
        wait_until(lambda: outcome(platform) == "NotStarted", "the drill is refused", 90)
        remove_schedule(platform)
    finally:
        os.kill(region, signal.SIGCONT)
    assert "region eu-central is" in history(platform)[0]["notStarted"]
    wait_until(lambda: receiver.bodies("DrillFailed"), "people are told", 60)
    (body,) = receiver.bodies("DrillFailed")
    assert "not started: region eu-central is" in body["data"]["message"]
    time.sleep(5)
    assert len(receiver.bodies("DrillFailed")) == 1


def test_schedule_with_a_wrong_time_is_refused(platform: RunningPlatform) -> None:
    for words in (("--cron", "61 * * * *"), ("--cron", "0 3 * * 0", "--time-zone", "Mars/Olympus")):
        added = ("drill", "schedule", "add", "region-loss", "--region", "us-east", *words)
        assert holdfast(*added, "--state", str(platform.state), check=False).returncode == 2
    assert not json.loads(holdfast("drill", "schedule", "list", "--state", str(platform.state), "-o", "json").stdout)


def test_missed_time_starts_no_drill_later(platform: RunningPlatform) -> None:
    """The supervisor was not there at the time of the drill: it is not made up for."""
    layout = Layout(platform.state)
    now = time.time()
    long_ago = time.gmtime(now - 1800)
    cron = f"{long_ago.tm_min} {long_ago.tm_hour} * * *"
    entry = DrillSchedule("missed", "region-loss", "us-east", cron, now - 7200)
    layout.drill_schedules.write_bytes(msgspec.json.encode([entry]))
    runs = len(history(platform))
    wait_until(lambda: outcome(platform) == "Missed", "the time counts as missed", 30)
    assert len(history(platform)) == runs
    command(platform, "drill", "schedule", "remove", "missed")
