"""SBOM, licences and the audit of vulnerabilities, against a registry of this test's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "supply_chain.py"
HOLE = {"id": "PYSEC-2026-1", "fixed_in": ["99.0"], "link": "about it"}


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **env})


class Registry(BaseHTTPRequestHandler):
    holes: dict[str, list[dict[str, Any]]] = {}
    asked: list[str] = []

    def do_GET(self) -> None:
        name = self.path.split("/")[2]
        self.asked.append(self.path)
        self._answer({"vulnerabilities": self.holes.get(name, [])})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer({})

    def _answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_dependency_has_an_allowed_licence() -> None:
    done = run("licences")
    assert done.returncode == 0, done.stdout
    assert "pkg:pypi/msgspec@" in done.stdout and "pkg:npm/svelte@" in done.stdout


def test_sbom_lists_every_locked_package_with_hashes_and_is_the_same_twice(tmp_path: Path) -> None:
    assert run("sbom", "--out", str(tmp_path / "sbom.json")).returncode == 0
    text = (tmp_path / "sbom.json").read_text(encoding="utf-8")
    assert run("sbom").stdout.strip() == text.strip()
    found = json.loads(text)
    listed = {c["purl"]: c for c in found["components"]}
    pins = re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", (ROOT / "requirements" / "runtime.txt").read_text(), re.M)
    assert pins and all(f"pkg:pypi/{name}@{version}" in listed for name, version in pins)
    lock = json.loads((ROOT / "console" / "package-lock.json").read_text(encoding="utf-8"))
    bundled = [p for p, item in lock["packages"].items() if p and not item.get("dev")]
    assert sum(purl.startswith("pkg:npm/") for purl in listed) == len(bundled)
    assert all(c["hashes"] and c["licenses"][0]["expression"] for c in listed.values())
    assert set(found["dependencies"][0]["dependsOn"]) == set(listed)


def test_licence_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import supply_chain

    def judged(licence: str) -> bool:
        return not supply_chain.refused_licences([supply_chain.Component("pypi", "x", "1", licence, ())])

    assert judged("MIT") and judged("GPL-3.0-only OR MIT") and judged("Apache-2.0 AND (BSD-3-Clause)")
    assert not judged("GPL-3.0-only") and not judged("MIT AND GPL-3.0-only") and not judged("")


def test_audit_reports_what_the_registry_knows(registry: str) -> None:
    env = {"PIP_INDEX_URL": f"{registry}/simple", "npm_config_registry": f"{registry}/", "no_proxy": "127.0.0.1"}
    Registry.holes, Registry.asked = {}, []
    clean = run("audit", **env)
    if "make tools" in clean.stdout:
        pytest.skip("npm is not installed")
    assert clean.returncode == 0 and ", 0 known vulnerabilities" in clean.stdout, clean.stdout
    pins = re.findall(r"^[a-z0-9._-]+==", (ROOT / "requirements" / "runtime.txt").read_text(), re.M)
    assert len(Registry.asked) == len(pins)
    Registry.holes = {"msgspec": [HOLE, {"id": "gone", "withdrawn": "2026-01-01T00:00:00Z"}]}
    found = run("audit", **env)
    assert found.returncode == 1, found.stdout
    assert "PYSEC-2026-1 (fixed in 99.0) about it" in found.stdout and "gone" not in found.stdout


def test_audit_without_a_registry_says_that_nothing_was_audited() -> None:
    nowhere = "http://127.0.0.1:9"
    env = {"PIP_INDEX_URL": f"{nowhere}/simple", "npm_config_registry": f"{nowhere}/", "npm_config_fetch_retries": "0"}
    done = run("audit", **env, no_proxy="127.0.0.1")
    assert done.returncode == 2
    assert "audit of the Python packages: the registry gave no answer" in done.stdout and "not audited" in done.stdout
