"""A real server process with TLS, and stock clients pointed at it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.requirements import skip_or_fail

HERE = Path(__file__).parent
MINORS = ("1.32", "1.33", "1.31", "1.30", "1.29", "1.28", "1.27")


def found_kubectls() -> dict[str, str]:
    """Every kubectl on this machine by minor version, the newest well-tested one first."""
    found: dict[str, str] = {}
    places = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    places += [p.resolve().parent for p in map(Path, filter(None, [shutil.which("kubectl")]))]
    places.append(Path("/usr/lib/google-cloud-sdk/bin"))
    for minor in MINORS:
        for place in places:
            if (place / f"kubectl.{minor}").exists():
                found.setdefault(minor, str(place / f"kubectl.{minor}"))
    old = HERE.parents[1] / ".tools" / "bin" / "kubectl"
    if old.exists() and "v1.20" in subprocess.run([old, "version", "--client"], capture_output=True, text=True).stdout:
        found["1.20"] = str(old)
    current = HERE.parents[1] / ".tools" / "bin" / "kubectl-1.35"
    if current.exists():
        found["1.35"] = str(current)
    plain = shutil.which("kubectl")
    if not found and plain:
        found["plain"] = plain
    return found


KUBECTLS = found_kubectls()


class Cell:
    """One server process and everything needed to call it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._log = (folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "cell_process.py"), str(folder), name], stdout=subprocess.PIPE, stderr=self._log
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "server.log").read_text()
        self.facts: dict[str, Any] = json.loads(line)
        self.url = f"https://127.0.0.1:{self.facts['port']}"
        for user, files in self.facts["credentials"].items():
            self._write_config(user, {"client-certificate": files["certificate"], "client-key": files["key"]})
        self._write_config("token", {"token": self.facts["token"]})

    def _write_config(self, user: str, credential: dict[str, str]) -> None:
        cluster = {"server": self.url, "certificate-authority": self.facts["ca"]}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cell",
            "clusters": [{"name": "cell", "cluster": cluster}],
            "contexts": [{"name": "cell", "context": {"cluster": "cell", "user": user, "namespace": "shop"}}],
            "users": [{"name": user, "user": credential}],
        }
        self.kubeconfig(user).write_text(json.dumps(config))

    def kubeconfig(self, user: str = "operator") -> Path:
        return self.folder / f"{user}.kubeconfig"

    def context(self, user: str = "operator") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.facts["ca"])
        if user:
            files = self.facts["credentials"][user]
            context.load_cert_chain(files["certificate"], files["key"])
        return context

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "operator",
        content_type: str = "application/json",
    ) -> tuple[int, Any]:
        """One request; the decoded response, whatever its status."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", content_type)
        try:
            with self._opener(user).open(request, timeout=30) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, _decoded(refused.read())

    def _opener(self, user: str) -> urllib.request.OpenerDirector:
        """Connects directly, ignoring proxies of the environment."""
        secure = urllib.request.HTTPSHandler(context=self.context(user))
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), secure)

    def revision(self) -> str:
        """The newest revision, which must not change if nothing is stored."""
        _, found = self.call("GET", "/apis/holdfast.dev/v1/tenants?limit=1")
        revision: str = found["metadata"]["resourceVersion"]
        return revision

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    running = Cell(tmp_path_factory.mktemp("cell"), "global")
    yield running
    running.stop()
    failures = [line for line in running.log().splitlines() if "request_failed" in line or "stream_failed" in line]
    assert not failures, "the server failed by itself:\n" + "\n".join(failures[:5])


class Kubectl:
    def __init__(self, binary: str, cell: Cell, home: Path) -> None:
        self.binary = binary
        self.cell = cell
        self.environment = {"HOME": str(home), "PATH": os.environ.get("PATH", ""), "KUBECTL_KYAML": "false"}
        self.home = home

    def start(self, *arguments: str, user: str = "operator", **more: Any) -> subprocess.Popen[str]:
        command = [self.binary, f"--kubeconfig={self.cell.kubeconfig(user)}", *arguments]
        environment = {**self.environment, **more.pop("environment", {})}
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,
            text=True,
            env=environment,
            **more,
        )

    def run(self, *arguments: str, user: str = "operator", given: str = "", code: int | None = 0, **more: Any) -> str:
        """The output of the command; fails the test if the exit code is not the expected one."""
        process = self.start(*arguments, user=user, **more)
        printed, _ = process.communicate(given, timeout=60)
        if code is not None:
            assert process.returncode == code, (
                f"kubectl {' '.join(arguments)} ended with {process.returncode}:\n{printed}"
            )
        return printed


def _versions() -> list[Any]:
    """One version is always tested, the others only in long runs."""
    first, *others = list(KUBECTLS) or ["none"]
    return [first, *(pytest.param(minor, marks=pytest.mark.slow) for minor in others)]


@pytest.fixture(params=_versions())
def kubectl(request: pytest.FixtureRequest, cell: Cell, tmp_path: Path) -> Kubectl:
    if request.param == "none":
        skip_or_fail("no kubectl found: install one (or kubectl.1.32 and the like) on PATH to run these tests")
    return Kubectl(KUBECTLS[request.param], cell, tmp_path)


@pytest.fixture
def newest(cell: Cell, tmp_path: Path) -> Kubectl:
    """One kubectl, for tests that need only one version."""
    if not KUBECTLS:
        skip_or_fail("no kubectl found: install one (or kubectl.1.32 and the like) on PATH to run these tests")
    return Kubectl(next(iter(KUBECTLS.values())), cell, tmp_path)


def eventually(check: Callable[[], Any], *, within_s: float = 20.0) -> Any:
    """The result of `check` once it is true; fails after a timeout."""
    deadline = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)
