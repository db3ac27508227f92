"""Notifications of a real platform to a real HTTP receiver: signed, retried, and kept through kills of the cell."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

KEY = b"a signing key of this test"
RECEIVER = Path(__file__).with_name("webhook_receiver.py")


class Receiver:
    """One receiver process at a fixed port, which can be killed and started again."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self.mode("ok")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def mode(self, name: str) -> None:
        (self.folder / "mode").write_text(name)

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(RECEIVER), str(self.folder), str(self.port)])

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listens, f"receiver {self.name} listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def requests(self) -> list[dict[str, Any]]:
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def bodies(self, kind: str) -> list[dict[str, Any]]:
        return [b for b in (json.loads(r["body"]) for r in self.requests()) if b["type"] == kind]

    def spec(self, **further: Any) -> dict[str, Any]:
        return {
            "apiVersion": V1,
            "kind": "NotificationReceiver",
            "metadata": {"name": self.name},
            "spec": {
                "url": f"http://127.0.0.1:{self.port}/hook",
                "secret": {"tenant": "acme", "name": "hook"},
                "minSeverity": "Info",
                "allowLoopback": True,
                **further,
            },
        }


@contextlib.contextmanager
def receiving(folder: Path, name: str) -> Iterator[Receiver]:
    receiver = Receiver(folder, name)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("notifications")
    with running_platform(state, "--regions", "us-east,eu-central,eu-west", "--agents", "1", "--no-samples") as running:
        running.apply(*TENANCY)
        meta = {"name": "hook", "namespace": "acme"}
        running.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"signingKey": KEY.decode()}}
        )
        yield running


def status_of(platform: RunningPlatform, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(platform.kubectl("get", "notificationreceiver", name, "-o", "json"))
    return dict(found.get("status", {}))


def remove(platform: RunningPlatform, receiver: Receiver) -> None:
    platform.kubectl("delete", "notificationreceiver", receiver.name)


def open_break_glass(platform: RunningPlatform, reason: str) -> None:
    session = {"apiVersion": V1, "kind": "BreakGlassSession", "metadata": {"generateName": "session-"}}
    path = platform.state / "session.json"
    path.write_text(json.dumps({**session, "spec": {"reason": reason, "durationSeconds": 60}}))
    platform.kubectl("create", "-f", str(path))


def send_test(platform: RunningPlatform, *receivers: Receiver) -> None:
    """One notification for several receivers, as an operator can make it."""
    at = datetime.datetime.now(datetime.UTC).isoformat()
    spec = {"type": "Test", "at": at, "key": f"test/{at}", "receivers": [r.name for r in receivers], "message": "test"}
    path = platform.state / "test.json"
    item = {"apiVersion": V1, "kind": "Notification", "metadata": {"generateName": "test-"}, "spec": spec}
    path.write_text(json.dumps(item))
    platform.kubectl("create", "-f", str(path))


def assert_signed(request: dict[str, Any]) -> None:
    headers = {name.lower(): value for name, value in request["headers"].items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{request['body']}".encode()
    wanted = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    assert abs(int(headers["webhook-timestamp"]) - request["at"]) < 30
    assert json.loads(request["body"])["data"]["id"] == headers["webhook-id"]


def test_test_notification_is_delivered_signed_and_counted(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "signed") as receiver:
        platform.apply(receiver.spec(minSeverity="Critical"))
        said = holdfast("notify", "test", "signed", "--state", str(platform.state))
        assert "accepted" in said.stdout + said.stderr
        (request,) = receiver.requests()
        assert request["path"] == "/hook"
        assert_signed(request)
        status = status_of(platform, "signed")
        assert (status["delivered"], status["pending"], status["dropped"]) == (1, 0, 0)
        assert status["lastSuccessAt"]
        listed = holdfast("notify", "receivers", "--state", str(platform.state)).stdout
        assert "signed" in listed
        assert "1/1" in holdfast("notify", "list", "--state", str(platform.state)).stdout
        remove(platform, receiver)


def test_url_of_a_secret_is_used_and_shown_nowhere(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "hidden") as receiver:
        url = f"http://127.0.0.1:{receiver.port}/services/T0P5ECRET"
        meta = {"name": "hidden", "namespace": "acme"}
        values = {"signingKey": KEY.decode(), "url": url}
        platform.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": values})
        spec = receiver.spec(secret={"tenant": "acme", "name": "hidden", "urlKey": "url"})
        del spec["spec"]["url"]
        platform.apply(spec)
        holdfast("notify", "test", "hidden", "--state", str(platform.state))
        (request,) = receiver.requests()
        assert request["path"] == "/services/T0P5ECRET"
        receiver.mode("refuse")
        assert holdfast("notify", "test", "hidden", "--state", str(platform.state), check=False).returncode == 1
        shown = platform.kubectl("get", "notificationreceivers,notifications", "-o", "yaml")
        logged = (platform.state / "logs" / "cell-global.log").read_text()
        assert "T0P5ECRET" not in shown + logged
        assert "HTTP status 500" in shown
        remove(platform, receiver)


def test_event_reaches_a_receiver_that_was_down_and_filters_apply(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "late") as receiver, receiving(tmp_path, "filtered") as filtered:
        platform.apply(receiver.spec(), filtered.spec(types=["RegionLost"]))
        receiver.stop()
        open_break_glass(platform, "INC-1: a receiver is down meanwhile")
        wait_until(lambda: status_of(platform, "late").get("failures", 0) >= 2, "attempts failed")
        status = status_of(platform, "late")
        assert status["pending"] == 1
        assert "refused" in status["problem"].lower()
        receiver.start()
        wait_until(lambda: receiver.bodies("BreakGlassUsed"), "the event arrives after the receiver is back")
        (body,) = receiver.bodies("BreakGlassUsed")
        assert "INC-1" in body["data"]["message"]
        assert body["data"]["severity"] == "Critical"
        wait_until(lambda: status_of(platform, "late").get("failures") == 0, "a success ends the failures")
        assert not filtered.requests()
        remove(platform, receiver)
        remove(platform, filtered)


def test_killed_cell_delivers_an_event_from_before_the_kill_once_accepted(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    with receiving(tmp_path, "killed") as receiver:
        platform.apply(receiver.spec())
        receiver.mode("refuse")
        open_break_glass(platform, "INC-2: the cell is killed before the delivery")
        wait_until(receiver.requests, "a first attempt was refused")
        os.kill(platform.pid("cell-global"), signal.SIGKILL)
        receiver.mode("ok")
        before = len(receiver.requests())
        wait_until(lambda: len(receiver.requests()) > before, "the new process delivers it", within_s=90)
        wait_until(lambda: status_of(platform, "killed").get("pending") == 0, "nothing is left")
        time.sleep(5)  # two more looks: the event must not be announced again
        ids = {json.loads(r["body"])["data"]["id"] for r in receiver.requests()}
        assert len(ids) == 1
        for request in receiver.requests():
            assert_signed(request)
        assert status_of(platform, "killed")["delivered"] == 1
        remove(platform, receiver)


@pytest.mark.parametrize(
    ("mode", "problem"), [("redirect", "redirects are not followed"), ("slow", "not complete after 10 s")]
)
def test_hostile_receiver_is_refused_and_delays_no_other(
    platform: RunningPlatform, tmp_path: Path, mode: str, problem: str
) -> None:
    with receiving(tmp_path, f"hostile-{mode}") as hostile, receiving(tmp_path, "good") as good:
        hostile.mode(mode)
        platform.apply(hostile.spec(), good.spec())
        send_test(platform, hostile, good)
        wait_until(lambda: good.bodies("Test"), "the good receiver gets it", within_s=15)
        wait_until(lambda: problem in status_of(platform, hostile.name).get("problem", ""), problem, within_s=60)
        assert all(request["path"] == "/hook" for request in hostile.requests())
        assert status_of(platform, hostile.name)["delivered"] == 0
        remove(platform, hostile)
        remove(platform, good)


def test_endless_response_is_not_read(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "huge") as receiver:
        receiver.mode("huge")
        platform.apply(receiver.spec())
        pid = platform.pid("cell-global")
        before_kb = resident_kb(pid)
        holdfast("notify", "test", "huge", "--state", str(platform.state))
        assert status_of(platform, "huge")["delivered"] == 1
        assert resident_kb(pid) - before_kb < 50_000
        remove(platform, receiver)


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def test_lost_region_is_raised_once_and_resolved(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "regions") as receiver:
        platform.apply(receiver.spec(types=["RegionLost"]))
        pid = platform.pid("cell-eu-central")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: receiver.bodies("RegionLost"), "the loss is announced", within_s=120)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: len(receiver.bodies("RegionLost")) == 2, "its end is announced", within_s=120)
        raised, resolved = receiver.bodies("RegionLost")
        assert (raised["data"]["state"], resolved["data"]["state"]) == ("Raised", "Resolved")
        assert raised["data"]["subject"] == {"kind": "Region", "tenant": "", "name": "eu-central"}
        assert resolved["data"]["resolves"] == raised["data"]["id"]
        remove(platform, receiver)


def test_failed_backup_of_a_region_is_announced_by_the_global_cell(platform: RunningPlatform, tmp_path: Path) -> None:
    with receiving(tmp_path, "backups") as receiver:
        platform.apply(receiver.spec(types=["BackupFailed"]))
        blocked = tmp_path / "not-a-directory"
        blocked.write_text("")
        cell = platform.state / "cells" / "us-east"
        arguments = ("backup", "--cell", "us-east", "--state", str(cell), "--to-dir", str(blocked / "below"))
        assert holdfast(*arguments, check=False).returncode != 0
        wait_until(lambda: receiver.bodies("BackupFailed"), "the failed backup is announced", within_s=40)
        (body,) = receiver.bodies("BackupFailed")
        assert body["data"]["subject"]["name"] == "us-east"
        remove(platform, receiver)
