"""A real Prometheus that scrapes a platform with the shipped configuration and rules."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.platforms import ROOT, RunningPlatform, holdfast, wait_until
from tests.requirements import skip_or_fail

from holdfast.platform.layout import Layout

PORT_OFFSET = 90
RULES = ROOT / "deploy/alerts/holdfast.rules.yaml"


def tool(name: str) -> str:
    program = shutil.which(name) or shutil.which(name, path=str(ROOT / ".tools/bin"))
    if program is None:
        skip_or_fail(f"{name} is missing; next: make tools")
    assert program is not None
    return program


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(query)}", timeout=10) as reply:
            return json.loads(reply.read())["data"]

    def is_ready(self) -> bool:
        try:
            return bool(self.get("status/buildinfo"))
        except OSError:
            return False

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        return [(row["metric"], float(row["value"][1])) for row in self.get("query", query=expression)["result"]]

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}


def shortened_rules(thresholds: Mapping[str, tuple[str, str]], *, range_s: int = 300) -> str:
    """The shipped rules with `for` of one second, ranges of `range_s`, and other thresholds for the named alerts."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = "1s"
        rule["expr"] = rule["expr"].replace("[5m]", f"[{range_s}s]")
        if rule["alert"] in thresholds:
            old, new = thresholds[rule["alert"]]
            assert old in rule["expr"], f"{rule['alert']}: {old}"
            rule["expr"] = rule["expr"].replace(old, new)
    text: str = yaml.safe_dump(rules)
    assert not re.search(r"for: (?!1s)", text)
    return text


@contextlib.contextmanager
def running_prometheus(platform: RunningPlatform, folder: Path, rules: str) -> Iterator[Prometheus]:
    """Scrapes and evaluates every second."""
    token = holdfast("token", "create", "prometheus", "--monitor", "--state", str(platform.state)).stdout.strip()
    (folder / "holdfast.token").write_text(token)
    shutil.copy(platform.state / "pki" / "ca.crt", folder / "ca.crt")
    (folder / "holdfast.rules.yaml").write_text(rules)
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    loaded = Layout(platform.state).load()
    cells = [(name, url.removeprefix("https://")) for name, url in loaded.cells]
    _, nodes_job, proxies_job = config["scrape_configs"]
    proxies_job["static_configs"] = [
        {"targets": [f"127.0.0.1:{loaded.proxy_status_port(region)}"], "labels": {"region": region}}
        for region in loaded.proxies
    ]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [at], "labels": {"cell": name}} for name, at in cells]
    (listed,) = nodes_job["http_sd_configs"]
    nodes_job["http_sd_configs"] = [
        {**listed, "url": f"https://{at}/metrics/nodes", "refresh_interval": "1s"} for _, at in cells
    ]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = platform.base + PORT_OFFSET
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    server = Prometheus(port)
    try:
        wait_until(server.is_ready, f"Prometheus answers ({(folder / 'log').read_text()[-500:]})", 60)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
