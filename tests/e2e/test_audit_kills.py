"""The audit log of a cell that is killed again and again under writes and denied requests: each exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.platforms import TENANCY, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.client.sync_api import ApiRefusal
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]
KILLS = 6
WRITERS = 3
PATH = "/api/v1/namespaces/acme/configmaps"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("audit") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as running:
        running.apply(*TENANCY)
        yield running


class Writer(threading.Thread):
    """Creates ConfigMaps one by one, and deletes each that was accepted. Remembers which requests were answered."""

    def __init__(self, state: Path, number: int, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self._layout, self._number, self._ending = Layout(state), number, ending
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.unknown: list[str] = []

    def run(self) -> None:
        count = 0
        while not self._ending.is_set():
            name, count = f"w{self._number}-{count}", count + 1
            api = connect_cell(self._layout, self._layout.load(), "global")
            try:
                api.request("POST", PATH, {"metadata": {"name": name}, "data": {"a": "b"}})
                self.created.append(name)
                api.request("DELETE", f"{PATH}/{name}")
                self.deleted.append(name)
            except ApiRefusal:
                raise
            except CommandError:
                self.unknown.append(name)
                time.sleep(0.05)
            finally:
                api.close()


def has_each_reached(denied: list[Denied], wanted: list[int]) -> bool:
    return all(thread.answered >= count for thread, count in zip(denied, wanted, strict=True))


def has_reached(writers: list[Writer], wanted: int) -> bool:
    return sum(len(writer.deleted) for writer in writers) >= wanted


def recorded(platform: RunningPlatform) -> Counter[tuple[str, str]]:
    """How often the log has each change of a ConfigMap, by operation and name."""
    words = ("audit", "search", "--last", "10000", "-n", "acme", "--state", str(platform.state), "-o", "json")
    entries = [e for record in json.loads(holdfast(*words).stdout)["records"] for e in record.get("entries", [])]
    return Counter((e["op"].lower(), e["name"]) for e in entries if e["kind"] == "ConfigMap")


def test_each_accepted_write_is_recorded_exactly_once_through_kills(platform: RunningPlatform) -> None:
    ending = threading.Event()
    writers = [Writer(platform.state, number, ending) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for _ in range(KILLS):
        wanted = sum(len(writer.deleted) for writer in writers) + 20
        wait_until(partial(has_reached, writers, wanted), "writes go on", 90)
        os.kill(platform.pid("cell-global"), signal.SIGKILL)
    wait_until(lambda: "acme" in platform.kubectl("get", "tenants", check=False), "the global cell is back")
    ending.set()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()

    seen = recorded(platform)
    held = platform.kubectl("-n", "acme", "get", "configmaps", "-o", "name")
    for writer in writers:
        assert len(writer.deleted) >= 20
        for name in writer.created:
            assert seen["create", name] == 1, (name, seen["create", name])
        for name in writer.deleted:
            assert seen["delete", name] == 1, (name, seen["delete", name])
        for name in writer.unknown:  # not answered: done and recorded, or neither
            assert seen["create", name] <= 1
            assert (f"configmap/{name}\n" in held) == (seen["create", name] > seen["delete", name])
    assert sum(len(writer.unknown) for writer in writers) > 0, "no write was interrupted; the test shows nothing"
    verified = json.loads(holdfast("audit", "verify", "--state", str(platform.state), "-o", "json").stdout)
    assert verified["findings"] == []


class Denied(threading.Thread):
    """Sends requests that are denied, and counts the answers. `token` is that of a viewer, or one that nobody knows."""

    def __init__(self, state: Path, token: str, code: int, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self._layout, self._token, self._code, self._ending = Layout(state), token, code, ending
        self.answered = self.unanswered = self.unavailable = 0

    def run(self) -> None:
        while not self._ending.is_set():
            api = connect_cell(self._layout, self._layout.load(), "global", token=self._token)
            try:
                api.request("POST", PATH, {"metadata": {"name": "denied"}})
                raise AssertionError("the request was permitted")
            except ApiRefusal as refusal:
                if refusal.status == 503:  # refused, but not told so: recorded once the store accepts it, or never
                    self.unavailable += 1
                elif refusal.status == self._code:
                    self.answered += 1
                else:
                    raise
            except CommandError:
                self.unanswered += 1
                time.sleep(0.05)
            finally:
                api.close()


def refusals_of(platform: RunningPlatform, name: str) -> int:
    """Refused requests of a principal, summed over the records."""
    words = ("audit", "search", "--refused", "--last", "10000", "--state", str(platform.state), "-o", "json")
    records = json.loads(holdfast(*words).stdout)["records"]
    return sum(int(record["count"]) for record in records if name in record["principal"])


def test_each_answered_denial_is_recorded_exactly_once_through_kills(platform: RunningPlatform) -> None:
    token = holdfast("token", "create", "denied-caller", "--viewer", "--state", str(platform.state)).stdout.strip()
    ending = threading.Event()
    readers = [Denied(platform.state, token, 403, ending) for _ in range(2)]
    strangers = [Denied(platform.state, "nobody-knows-this-token", 401, ending) for _ in range(2)]
    before = refusals_of(platform, "system:anonymous")
    for thread in (*readers, *strangers):
        thread.start()
    for _ in range(KILLS):
        wanted = [thread.answered + 15 for thread in (*readers, *strangers)]
        wait_until(partial(has_each_reached, [*readers, *strangers], wanted), "denials are answered", 90)
        os.kill(platform.pid("cell-global"), signal.SIGKILL)
    wait_until(lambda: "acme" in platform.kubectl("get", "tenants", check=False), "the global cell is back")
    ending.set()
    for thread in (*readers, *strangers):
        thread.join(60)
        assert not thread.is_alive()

    for threads, found in (
        (readers, refusals_of(platform, "denied-caller")),
        (strangers, refusals_of(platform, "system:anonymous") - before),
    ):
        answered = sum(thread.answered for thread in threads)
        unknown = sum(thread.unanswered + thread.unavailable for thread in threads)
        assert answered <= found <= answered + unknown, f"{found} recorded, {answered} answered, {unknown} unknown"
        assert unknown > 0, "no request was interrupted; the test shows nothing"
    verified = json.loads(holdfast("audit", "verify", "--state", str(platform.state), "-o", "json").stdout)
    assert verified["findings"] == []


def test_denied_requests_are_counted_exactly(platform: RunningPlatform) -> None:
    state = ("--state", str(platform.state))
    token = holdfast("token", "create", "reader", "--viewer", *state).stdout.strip()
    api = connect_cell(Layout(platform.state), Layout(platform.state).load(), "global", token=token)
    try:
        for number in range(25):
            with pytest.raises(CommandError):
                api.request("POST", PATH, {"metadata": {"name": f"denied-{number}"}})
    finally:
        api.close()

    def counted() -> int:
        found = json.loads(holdfast("audit", "search", "--refused", "--last", "500", *state, "-o", "json").stdout)
        return sum(int(r.get("count", 1) or 1) for r in found["records"] if "reader" in json.dumps(r))

    wait_until(lambda: counted() >= 25, "all are recorded")
    time.sleep(2)
    assert counted() == 25


def test_tail_prints_new_records_as_they_are_written(platform: RunningPlatform) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "audit", "tail", "--last", "1", "--state", str(platform.state)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as tail:
        lines: list[str] = []
        assert tail.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(iter(tail.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
        reader.start()
        wait_until(lambda: lines, "the newest record is printed")
        platform.kubectl("label", "--overwrite", "tenants.holdfast.dev", "acme", "seen=by-tail")
        wait_until(lambda: any("acme" in line for line in lines[1:]), "the new record is printed", 30)
        tail.send_signal(signal.SIGINT)
        assert tail.wait(20) == 0
