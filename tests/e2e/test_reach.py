"""Reaching running work with every installed kubectl, the Kubernetes Python client and holdfast's own commands."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import ROOT, TENANCY, V1, RunningPlatform, holdfast, holdfast_command, running_platform, wait_until
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400)]

CONTEXTS = ("us-east", "global")
"""Of the region that runs the pods, and of the global cell, which relays to it."""
SCRIPT = "echo hello; exec python3 -u -m http.server $PORT --bind 127.0.0.1"


def kubectls() -> list[str]:
    """One that speaks only SPDY, one that speaks WebSocket, and the one that tests use otherwise, if installed."""
    known = [Path(f"/usr/lib/google-cloud-sdk/bin/kubectl.1.{minor}") for minor in (29, 32)]
    plain = shutil.which("kubectl")
    found = [ROOT / ".tools" / "bin" / "kubectl", *known, *([Path(plain)] if plain else [])]
    return [str(path) for path in found if path.exists()]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    if not kubectls():
        skip_or_fail("kubectl is missing; next: make tools")
    state = tmp_path_factory.mktemp("reach") / "state"
    with running_platform(state, "--regions", "us-east", "--no-samples") as running:
        running.apply(*TENANCY, workload("web", SCRIPT, replicas=2, disruption={"maxUnavailable": 1}))
        running.apply(workload("job", "echo worked; echo badly >&2", type="Batch", batch={"completions": 1}))
        wait_until(lambda: running.workload("web").get("serving") == 2, within_s=90, what="it serves")
        yield running


def workload(name: str, script: str, **spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = {
        "command": ["sh", "-c", script],
        "resources": {"cpu": "10m", "memory": "64Mi"},
        "terminationGraceSeconds": 1,
        "drainDelaySeconds": 0,
    }
    if spec.get("type") == "Batch":
        template["restartPolicy"] = "Never"
    else:
        template["ports"] = [{"name": "http"}]
    meta = {"name": name, "namespace": "acme"}
    return {"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": {**spec, "template": template}}


def command(platform: RunningPlatform, program: str, *arguments: str, context: str = "us-east") -> list[str]:
    where = ("--kubeconfig", str(platform.state / "kubeconfig"), "--context", context, "-n", "acme")
    return [program, *where, "--cache-dir", str(platform.state / "kube-cache"), *arguments]


def kubectl(
    platform: RunningPlatform,
    *arguments: str,
    program: str = "",
    stdin: str = "",
    code: int | None = 0,
    context: str = "us-east",
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(platform, program or kubectls()[-1], *arguments, context=context),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def pods(platform: RunningPlatform) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(platform, "get", "pods", "-o", "json").stdout)["items"]
    return sorted(
        (item for item in found if item["metadata"]["name"].startswith("web")), key=lambda p: p["metadata"]["name"]
    )


def pod(platform: RunningPlatform) -> str:
    return str(wait_until(lambda: pods(platform), within_s=60, what="a pod exists")[0]["metadata"]["name"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def background(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def get(port: int, path: str = "/") -> int:
    def once() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            return connection.getresponse().status
        return 0

    return int(wait_until(once, within_s=60, what=f"port {port} answers"))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("program", kubectls(), ids=lambda path: Path(path).name)
def test_exec_carries_input_and_exit_code(platform: RunningPlatform, program: str, context: str) -> None:
    done = kubectl(
        platform, "exec", "-i", pod(platform), "--", "sh", "-c", "cat; echo bad >&2; exit 7",
        program=program, stdin="typed", code=7, context=context,
    )  # fmt: skip
    assert done.stdout == "typed" and "bad" in done.stderr
    missing = kubectl(platform, "exec", pod(platform), "--", "not-a-program", code=127, context=context)
    assert "not-a-program" in missing.stdout


@pytest.mark.parametrize("program", kubectls()[-1:], ids=["newest"])
def test_exec_with_a_terminal_is_interactive(platform: RunningPlatform, program: str) -> None:
    for arguments in (
        *(command(platform, program, "exec", "-it", pod(platform), "--", "sh", context=name) for name in CONTEXTS),
        holdfast_command("exec", "-it", replica(platform), "--state", str(platform.state), "--", "sh"),
    ):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvpe(arguments[0], arguments, {**os.environ, "HOME": str(platform.state)})
        seen = b""
        os.write(terminal, b"test -t 0 && echo is-a-$((1+1))-terminal; exit 9\n")
        with contextlib.suppress(OSError):
            while data := os.read(terminal, 4096):
                seen += data
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        assert b"is-a-2-terminal" in seen and os.waitstatus_to_exitcode(status) == 9, seen


def replica(platform: RunningPlatform) -> str:
    return f"acme/{pod(platform).rpartition('.')[0]}"


def test_files_are_copied_both_ways(platform: RunningPlatform, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    name = pod(platform)
    kubectl(platform, "cp", str(tmp_path / "file"), f"{name}:/tmp/there")
    kubectl(platform, "cp", f"{name}:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    kubectl(platform, "cp", str(tmp_path / "file"), f"{name}:/tmp/far", context="global")
    kubectl(platform, "cp", f"{name}:/tmp/far", str(tmp_path / "far"), context="global")
    assert (tmp_path / "far").read_bytes() == data
    own, state = replica(platform), str(platform.state)
    holdfast("cp", str(tmp_path / "file"), f"{own}:/tmp/mine", "--state", state)
    holdfast("cp", f"{own}:/tmp/mine", str(tmp_path / "own"), "--state", state)
    assert (tmp_path / "own").read_bytes() == data
    assert "not copied" in holdfast("cp", f"{own}:/tmp/no", str(tmp_path / "x"), "--state", state, check=False).stderr


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("program", kubectls(), ids=lambda path: Path(path).name)
def test_port_forward_serves_http_and_refuses_other_ports(
    platform: RunningPlatform, program: str, context: str
) -> None:
    local, name = free_port(), f"pod/{pod(platform)}"
    with background(command(platform, program, "port-forward", name, f"{local}:http", context=context)):
        assert [get(local), get(local, "/missing")] == [200, 404]
    with background(command(platform, program, "port-forward", name, f"{local}:22", context=context)) as refused:
        wait_until(lambda: can_connect(local), within_s=30, what="kubectl listens")
        read_until(refused, b"not a TCP port of replica")


def read_until(process: subprocess.Popen[bytes], wanted: bytes) -> None:
    assert process.stdout is not None
    output, seen = process.stdout, b""
    os.set_blocking(output.fileno(), False)

    def found() -> bool:
        nonlocal seen
        seen += output.read() or b""
        return wanted in seen

    wait_until(found, within_s=60, what=f"{wanted.decode()} is printed")


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"x\r\n")
        return True
    return False


def test_own_port_forward_and_attach(platform: RunningPlatform) -> None:
    local, name = free_port(), replica(platform)
    with background(holdfast_command("port-forward", name, f"{local}:http", "--state", str(platform.state))):
        assert get(local) == 200
        with background(holdfast_command("attach", name, "--state", str(platform.state))) as attached:
            assert attached.stdout is not None
            os.set_blocking(attached.stdout.fileno(), False)
            output, seen = attached.stdout, b""

            def shown() -> bool:
                nonlocal seen
                get(local, "/seen-by-attach")
                seen += output.read() or b""
                return b"/seen-by-attach" in seen

            wait_until(shown, within_s=60, what="attach shows new output")


def test_logs_of_ended_work_are_read_from_elsewhere(platform: RunningPlatform) -> None:
    def ended() -> bool:
        return "worked" in kubectl(platform, "logs", "job-us-east-0.1", code=None).stdout

    wait_until(lambda: platform.workload("job").get("phase") != "" and ended(), within_s=90, what="the job has ended")
    wait_until(lambda: not any("job" in p["metadata"]["name"] for p in all_pods(platform)), "its pod is gone")
    assert kubectl(platform, "logs", "job-us-east-0.1").stdout.splitlines() == ["worked", "badly"]
    for context in CONTEXTS:
        followed = kubectl(platform, "logs", "-f", "job-us-east-0.1", context=context).stdout
        assert followed.splitlines() == ["worked", "badly"]
    remote = str(platform.state / "kubeconfig")
    assert holdfast("logs", "acme/job", "--state", remote).stdout.splitlines() == ["worked", "badly"]
    late = kubectl(platform, "logs", "job-us-east-0.1", "--since-time", "2099-01-01T00:00:00Z").stdout
    assert late == ""


def all_pods(platform: RunningPlatform) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(platform, "get", "pods", "-o", "json").stdout)["items"]
    return found


def test_previous_logs_are_those_of_earlier_runs(platform: RunningPlatform) -> None:
    name = pod(platform)
    kubectl(platform, "exec", name, "--", "sh", "-c", "kill -9 $(pgrep -u $(id -u) -f '[h]ttp.server')", code=None)

    def restarted() -> bool:
        return kubectl(platform, "logs", name, code=None).stdout.count("hello") == 2

    wait_until(restarted, within_s=60, what="the task runs again")
    assert kubectl(platform, "logs", "-p", name).stdout.count("hello") == 1


@pytest.mark.parametrize("context", CONTEXTS)
def test_log_and_attach_follow_new_output(platform: RunningPlatform, context: str) -> None:
    local, name = free_port(), pod(platform)
    follow = (("logs", "-f", "--tail=1", name), ("attach", name))
    with background(command(platform, kubectls()[-1], "port-forward", f"pod/{name}", f"{local}:http")):
        for number, words in enumerate(follow):
            with background(command(platform, kubectls()[-1], *words, context=context)) as process:
                wanted = f"/seen-{number}-{context}"
                asked = threading.Event()

                def keep_asking(path: str = wanted, done: threading.Event = asked) -> None:
                    while not done.wait(0.3):
                        get(local, path)

                thread = threading.Thread(target=keep_asking)
                thread.start()
                try:
                    read_until(process, wanted.encode())
                finally:
                    asked.set()
                    thread.join()


def test_sessions_through_the_global_cell_need_the_right_and_are_audited_in_both_cells(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    state, name = ("--state", str(platform.state)), pod(platform)
    kubectl(platform, "exec", name, "--", "echo", "asked-globally", context="global")
    for where in ((), ("--region", "us-east")):
        assert "asked-globally" in holdfast("audit", "search", "--last", "200", *where, *state).stdout, where
    token = holdfast("token", "create", "vera", "--viewer", *state).stdout.strip()
    config = tmp_path / "viewer.kubeconfig"
    config.write_text(holdfast("kubeconfig", "--token", token, *state).stdout)
    viewer = [kubectls()[-1], "--kubeconfig", str(config), "--context", "global", "-n", "acme"]
    for words in (("exec", name, "--", "id"), ("attach", name), ("port-forward", f"pod/{name}", f"{free_port()}:http")):
        refused = subprocess.run([*viewer, *words], capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode != 0 and "orbidden" in refused.stderr, (words, refused.stderr)


@pytest.mark.parametrize("context", CONTEXTS)
def test_top_shows_pods_and_nodes(platform: RunningPlatform, context: str) -> None:
    def top(*words: str) -> str:
        return kubectl(platform, "top", *words, code=None, context=context).stdout

    wait_until(lambda: "web-us-east" in top("pods"), "top shows the pods")
    assert "us-east-1" in top("nodes") and "us-east-1" in top("node", "us-east-1")
    raw = json.loads(kubectl(platform, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/acme/pods").stdout)
    assert raw["items"][0]["window"] == "500ms" and raw["items"][0]["containers"][0]["usage"]["memory"].endswith("Ki")


def test_python_client_executes_and_forwards(platform: RunningPlatform) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    from kubernetes.stream import portforward, stream

    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(
        str(platform.state / "kubeconfig"), context="us-east", client_configuration=configuration
    )
    api = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
    name = pod(platform)
    shell = stream(
        api.connect_get_namespaced_pod_exec, name, "acme", command=["sh"], stdin=True, stdout=True, stderr=True,
        tty=False, _preload_content=False,
    )  # fmt: skip
    shell.write_stdin("echo from python; exit 4\n")
    shell.run_forever(timeout=30)
    assert (shell.read_stdout(), shell.returncode) == ("from python\n", 4)
    port = next(p for p in pods(platform) if p["metadata"]["name"] == name)["spec"]["containers"][0]["ports"][0]
    number = int(port["containerPort"])
    forwarded = portforward(api.connect_get_namespaced_pod_portforward, name, "acme", ports=str(number))
    connection = forwarded.socket(number)
    connection.setblocking(True)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b""
    while data := connection.recv(1000):
        answer += data
    assert answer.startswith(b"HTTP/1.0 200")


def test_delete_pod_replaces_the_replica_within_its_budget(platform: RunningPlatform) -> None:
    wait_until(lambda: platform.workload("web").get("serving") == 2, within_s=90, what="it serves")
    before = {p["metadata"]["uid"] for p in pods(platform)}
    first, second = (p["metadata"]["name"] for p in pods(platform))
    kubectl(platform, "delete", "pod", first, "--wait=false")
    refused = kubectl(platform, "delete", "pod", second, "--wait=false", code=None)
    assert refused.returncode == 0 or "disruption budget" in refused.stderr
    wait_until(lambda: len({p["metadata"]["uid"] for p in pods(platform)} - before) >= 1, "a new pod exists", 60)
    wait_until(lambda: platform.workload("web").get("serving") == 2, within_s=90, what="both serve again")


def test_sessions_end_and_begin_again_when_the_cell_is_killed(platform: RunningPlatform) -> None:
    name, local = pod(platform), free_port()
    forward = command(platform, kubectls()[-1], "port-forward", f"pod/{name}", f"{local}:http")
    with (
        background(command(platform, kubectls()[-1], "exec", name, "--", "sleep", "4848.5")) as running,
        background(forward) as forwarding,
    ):
        wait_until(lambda: sleeping("4848.5", platform), within_s=30, what="the command runs")
        assert get(local) == 200
        os.kill(platform.pid("cell-us-east"), signal.SIGKILL)
        assert running.wait(60) != 0
        wait_until(lambda: not can_connect(local) or forwarding.poll() is not None, "the forward has ended", 60)
    began = time.monotonic()

    def again() -> bool:
        return kubectl(platform, "exec", name, "--", "echo", "again", code=None).stdout == "again\n"

    wait_until(again, within_s=90, what=f"a new session works ({time.monotonic() - began:.0f} s)")
    wait_until(lambda: not sleeping("4848.5", platform), within_s=60, what="the command of the lost session is gone")
    with background(forward):
        assert get(local) == 200, "a new forward works"


def sleeping(text: str, platform: RunningPlatform) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes() == b"sleep\0" + text.encode() + b"\0":
                return True
    return False
