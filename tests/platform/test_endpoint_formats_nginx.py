"""The nginx upstream in a real nginx, with traffic."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.requirements import skip_or_fail

from holdfast.platform.endpoint_formats import render_endpoints

ROOT = Path(__file__).resolve().parents[2]
FRONT = """
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 128; }}
http {{
    access_log off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    include {folder}/upstream.conf;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://acme-api; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


@pytest.fixture
def nginx() -> str:
    tools = ROOT / ".tools" / "bin" / "nginx"
    program = str(tools) if tools.exists() else shutil.which("nginx")
    if program is None:
        skip_or_fail("nginx is missing; next: make tools")
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def replicas() -> Iterator[list[dict[str, Any]]]:
    """Two servers that respond with their own name."""
    servers = []
    for name in ("api-us-east-0", "api-us-east-1"):

        class NameHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            body = name.encode()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(self.body)))
                self.end_headers()
                self.wfile.write(self.body)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NameHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    yield [
        {"address": "127.0.0.1", "ports": {"http": s.server_address[1]}, "replica": f"api-us-east-{n}"}
        for n, s in enumerate(servers)
    ]
    for server in servers:
        server.shutdown()
        server.server_close()


def write(folder: Path, port: int, addresses: list[dict[str, Any]]) -> None:
    (folder / "front.conf").write_text(FRONT.format(folder=folder, port=port))
    (folder / "upstream.conf").write_text(render_endpoints("nginx", "acme", "api", addresses, "http"))


def check_configuration(nginx: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [nginx, "-t", "-p", str(folder), "-c", str(folder / "front.conf")], capture_output=True, text=True, timeout=20
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_nginx_accepts_the_configuration(
    nginx: str, tmp_path: Path, replicas: list[dict[str, Any]], count: int
) -> None:
    write(tmp_path, free_port(), replicas[:count])
    completed = check_configuration(nginx, tmp_path)
    assert completed.returncode == 0, completed.stderr
    (tmp_path / "upstream.conf").write_text("upstream acme-api { server }\n")
    assert check_configuration(nginx, tmp_path).returncode != 0, "the check can fail"


def test_requests_reach_every_replica_until_reload_removes_one(
    nginx: str, tmp_path: Path, replicas: list[dict[str, Any]]
) -> None:
    port = free_port()
    write(tmp_path, port, replicas)
    command = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "front.conf")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        answered = request_until(port, {"api-us-east-0", "api-us-east-1"})
        assert answered == {"api-us-east-0", "api-us-east-1"}
        write(tmp_path, port, replicas[:1])
        subprocess.run([*command, "-s", "reload"], check=True, timeout=20, capture_output=True)
        deadline = time.monotonic() + 10
        while {request(port) for _ in range(8)} != {"api-us-east-0"}:
            assert time.monotonic() < deadline, "the old nginx workers exit"
        write(tmp_path, port, [])
        subprocess.run([*command, "-s", "reload"], check=True, timeout=20, capture_output=True)
        while request(port) != "502":
            assert time.monotonic() < deadline + 10
    finally:
        running.terminate()
        running.wait(10)


def request(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        time.sleep(0.05)
        return ""


def request_until(port: int, expected: set[str], within_s: float = 10.0) -> set[str]:
    deadline = time.monotonic() + within_s
    found: set[str] = set()
    while not expected <= found and time.monotonic() < deadline:
        found |= {request(port)} - {""}
    return found
