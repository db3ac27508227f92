"""A real platform with a Secret of a recognisable value: the task gets it, and no other byte of the platform has it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

# Prints how much of the values it got, never the values themselves.
TASK = (
    "import hashlib, os, time\n"
    "while True:\n"
    "    env = hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest()\n"
    "    file = hashlib.sha256(open('creds/token', 'rb').read()).hexdigest()\n"
    "    print('saw', env[:16], file[:16], os.environ.get('CFG_mode', '-'), flush=True)\n"
    "    time.sleep(0.5)\n"
)


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def forms(value: str) -> tuple[bytes, ...]:
    """The value raw, in base64 at each of the three offsets, and as hex."""
    raw = value.encode()
    found = [raw, raw.hex().encode()]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        found.append(encoded[4 if shift else 0 : -4])
    return tuple(found)


def secret(name: str, value: str, tenant: str = "acme") -> dict[str, Any]:
    meta = {"name": name, "namespace": tenant}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"token": value}}


def workload(name: str, secret_name: str, **reference: Any) -> dict[str, Any]:
    template = {
        "command": ["python3", "-c", TASK],
        "resources": {"cpu": "50m", "memory": "64Mi"},
        "envValues": [{"name": "TOKEN", "secret": secret_name, "key": "token", **reference}],
        "envFrom": [{"configMap": "settings", "prefix": "CFG_", "optional": True}],
        "files": [{"path": "creds", "secret": secret_name, **reference}],
        "terminationGraceSeconds": 1,
    }
    return {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": 1, "template": template, "placement": {"regions": ["us-east"]}},
    }


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("secrets") / "platform"
    with running_platform(state, "--no-samples", "--regions", "us-east,eu-west") as running:
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": "acme"},
            "data": {"mode": "quick", "mark": "canary-in-clear"},
        }
        other = {"apiVersion": V1, "kind": "Tenant", "metadata": {"name": "rival"}, "spec": {}}
        running.apply(*TENANCY, other)
        running.apply(config)
        yield running


def logs(platform: RunningPlatform, workload_name: str) -> str:
    """The newest line of each task of the workload."""
    found = []
    for path in platform.state.glob(f"agents/*/tasks/acme_{workload_name}-*/output.log"):
        lines = path.read_text(errors="replace").strip().splitlines()
        found += lines[-1:]
    return "\n".join(found)


def reason(platform: RunningPlatform, workload_name: str) -> str:
    out = platform.kubectl("--context", "us-east", "-n", "acme", "get", "replicas", "-o", "json")
    for item in json.loads(out)["items"]:
        if item["spec"]["workload"] == workload_name:
            block = item["status"].get("execution", {})
            return f"{block.get('reason', '')}: {block.get('message', '')}"
    return ""


def files_with(folder: Path, wanted: tuple[bytes, ...], besides: tuple[Path, ...] = ()) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or any(path.is_relative_to(skipped) for skipped in besides):
            continue
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if any(form in part for part in contents(data) for form in wanted):
            found.append(str(path))
    return found


def contents(data: bytes) -> Iterator[bytes]:
    """The bytes of a file; of a compressed one (backups, bundles) also what is in it, and its base64 decoded."""
    yield data
    if data.startswith(b"\x1f\x8b"):
        unpacked = gzip.decompress(data)
        yield unpacked
        texts = re.findall(rb"[A-Za-z0-9+/]{40,}", unpacked)
        yield b"\n".join(base64.b64decode((text[:-1] if len(text) % 4 == 1 else text) + b"==") for text in texts)


def processes_with(wanted: tuple[bytes, ...]) -> set[int]:
    """Processes with the value in their command line or environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    data = (entry / name).read_bytes()
                except OSError:
                    continue
                if any(form in data for form in wanted):
                    found.add(int(entry.name))
    return found


def task_pids(platform: RunningPlatform, workload_name: str) -> set[int]:
    out = platform.kubectl("--context", "us-east", "-n", "acme", "get", "replicas", "-o", "json")
    items = [i for i in json.loads(out)["items"] if i["spec"]["workload"] == workload_name]
    return {i["status"].get("execution", {}).get("pid", 0) for i in items} - {0}


def test_secret_value_is_nowhere_but_in_the_task(platform: RunningPlatform, tmp_path: Path) -> None:
    value = f"canary-{secrets.token_urlsafe(24)}"
    platform.kubectl(
        "--context", "global", "-n", "acme", "create", "secret", "generic", "db", f"--from-literal=token={value}"
    )
    platform.apply(workload("reader", "db"))
    want = f"saw {digest(value)} {digest(value)} quick"
    wait_until(lambda: want in logs(platform, "reader"), "the task has the value as environment and as a file", 90)
    # kubectl apply stores the applied data in an annotation.
    manifest = tmp_path / "db.json"
    manifest.write_text(json.dumps(secret("db", value)))
    platform.kubectl("--context", "global", "apply", "-f", str(manifest))
    shown = platform.kubectl("--context", "global", "-n", "acme", "get", "secret", "db", "-o", "json")
    assert base64.b64encode(value.encode()).decode() in shown and value in shown
    for cell in ("global", "us-east"):
        target = platform.state / f"{cell}.backup"
        holdfast("backup", "--cell", cell, "--state", str(platform.state / "cells" / cell), "--to", str(target))
    for command in (("explain", "acme/reader"), ("status",), ("audit", "--last", "1000"), ("get", "secrets")):
        done = holdfast(*command, "--state", str(platform.state), check=False)
        if command[0] != "get":
            assert not any(form.decode() in done.stdout + done.stderr for form in forms(value)), command
    bundle = platform.state / "bundle.tar.gz"
    holdfast("support-bundle", "--state", str(platform.state), "--to", str(bundle), timeout_s=300)
    wanted = forms(value)
    for cell in ("global", "us-east"):
        metrics = platform.kubectl("--context", cell, "get", "--raw", "/metrics")
        assert not any(form.decode() in metrics for form in wanted)
    assert files_with(platform.state, wanted) == []
    # The search finds what is there: the replica in the bundle, a ConfigMap in the stores and both backups.
    assert str(bundle) in files_with(platform.state, (b"reader-us-east-0",))
    plain = set(files_with(platform.state, (b"canary-in-clear",)))
    assert {str(platform.state / f"{cell}.backup") for cell in ("global", "us-east")} <= plain
    assert any(path.endswith("store.sqlite") or path.endswith("store.sqlite-wal") for path in plain)
    pids = task_pids(platform, "reader")
    assert pids and processes_with(wanted) <= pids
    in_memory = files_with(Path("/dev/shm"), wanted)
    assert in_memory and all("/acme_reader-" in path for path in in_memory)
    for path in in_memory:
        assert oct(os.stat(path).st_mode & 0o777) in ("0o400", "0o600"), path
    # A region without work that refers to it has no copy.
    assert _copies(platform, "us-east") == 1 and _copies(platform, "eu-west") == 0
    platform.kubectl("--context", "global", "-n", "acme", "delete", "workload", "reader", "--timeout=60s")
    wait_until(lambda: not files_with(Path("/dev/shm"), wanted), "the values are removed with the task")
    wait_until(lambda: not _copies(platform, "us-east"), "the copy is removed with the last reference")


def _copies(platform: RunningPlatform, region: str) -> int:
    rows = json.loads(
        holdfast("secrets", "keys", "--cell", region, "--state", str(platform.state), "-o", "json").stdout
    )["keys"]
    return sum(row["secrets"] for row in rows)


def test_another_tenant_reaches_the_value_by_no_path(platform: RunningPlatform, tmp_path: Path) -> None:
    value = f"canary-{secrets.token_urlsafe(24)}"
    platform.apply(secret("hidden", value), workload("keeper", "hidden"))
    wait_until(lambda: f"saw {digest(value)}" in logs(platform, "keeper"), "the task has the value", 90)
    state = str(platform.state)
    token = holdfast("token", "create", "rita", "--tenant", "rival", "--state", state).stdout.strip()
    config = tmp_path / "rival.kubeconfig"
    config.write_text(holdfast("kubeconfig", "--token", token, "--state", state).stdout)
    pods = platform.kubectl("--context", "us-east", "-n", "acme", "get", "pods", "-o", "name").split()
    (pod,) = [name for name in pods if "keeper" in name]
    replica = pod.removeprefix("pod/")
    stolen = {**workload("thief", "hidden"), "metadata": {"name": "thief", "namespace": "rival"}}
    (tmp_path / "thief.json").write_text(json.dumps(stolen))
    tried: list[tuple[str, ...]] = []
    for context in ("global", "us-east"):
        given = ("kubectl", "--context", context)
        tried += [(*given, "get", "secrets", *more) for more in (("-A",), ("-n", "acme"), ("-n", "acme", "hidden"))]
        tried += [
            (*given, "get", "secrets", "-n", "acme", "-w", "--request-timeout=3s"),
            (*given, "get", "secrets", "-A", "--field-selector", "metadata.name=hidden", "-o", "yaml"),
            (*given, "get", "secrets", "-A", "-l", "!none", "-o", "json"),
            (*given, "get", "--raw", "/api/v1/namespaces/acme/secrets?watch=1&timeoutSeconds=2&resourceVersion=0"),
            (*given, "get", "events,workloads.holdfast.dev,replicas.holdfast.dev,decisions.holdfast.dev", "-n", "acme"),
            (*given, "logs", "-n", "acme", replica),
            (*given, "exec", "-n", "acme", replica, "--", "env"),
            (*given, "cp", f"acme/{replica}:creds/token", str(tmp_path / "taken")),
            (*given, "attach", "-n", "acme", replica),
            (*given, "port-forward", "-n", "acme", f"pod/{replica}", ":80"),
            (*given, "get", "--raw", f"/api/v1/namespaces/acme/pods/{replica}/log"),
            (*given, "describe", "pod", "-n", "acme", replica),
        ]
    tried += [
        ("explain", f"acme/{replica}"), ("logs", "acme/keeper"), ("exec", f"acme/{replica}", "--", "env"),
        ("plan", "-f", str(tmp_path / "thief.json")), ("get", "secrets,events,decisions,replicas", "-o", "json"),
        ("audit", "--last", "1000"), ("support-bundle", "--to", str(tmp_path / "bundle.tar.gz")),
        ("why-not", f"acme/{replica}", "us-east-1"), ("replay", f"acme/{replica}"), ("status", "-o", "json"),
        ("attach", f"acme/{replica}"), ("rollout", "history", "acme/keeper"), ("rollout", "diff", "acme/keeper"),
        ("plan", "--lose-region", "us-east"), ("top", "--by", "replica", "-o", "json"),
    ]  # fmt: skip
    for command in tried:
        done = as_tenant(platform, config, command)
        printed = done.stdout + done.stderr
        assert not any(form in printed for form in forms(value)), command
        if "acme" in command or any(word.startswith("acme/") for word in command):
            assert done.returncode != 0, (command, printed)
    assert not (tmp_path / "taken").exists()
    assert files_with(tmp_path, forms(value)) == [], "nothing that was written for the other tenant has it"
    platform.kubectl("--context", "global", "-n", "acme", "delete", "workload", "keeper", "--timeout=60s")


def as_tenant(platform: RunningPlatform, config: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    """Runs kubectl or a command of holdfast with the tenant's kubeconfig."""
    if command[0] == "kubectl":
        words = [platform.kubectl_program(), "--kubeconfig", str(config), *command[1:]]
    else:
        separator = command.index("--") if "--" in command else len(command)
        options = ("--state", str(config))
        words = [sys.executable, "-m", "holdfast.cli", *command[:separator], *options, *command[separator:]]
    return subprocess.run(words, capture_output=True, timeout=60, env={**os.environ, "HOME": str(config.parent)})


def test_missing_secret_is_named_and_the_replica_starts_when_it_appears(platform: RunningPlatform) -> None:
    platform.apply(workload("waiter", "later"))
    found = wait_until(lambda: "SecretMissing" in reason(platform, "waiter") and reason(platform, "waiter"), "a reason")
    assert "Secret later: does not exist" in found
    assert "SecretMissing" in holdfast("explain", "acme/waiter", "--state", str(platform.state)).stdout
    events = platform.kubectl("--context", "us-east", "-n", "acme", "get", "events")
    assert "SecretMissing" in events and "Secret later: does not exist" in events
    platform.apply({**secret("later", "x"), "stringData": {"other": "y"}})
    wait_until(lambda: 'has no key "token"' in reason(platform, "waiter"), "the missing key is named")
    value = f"canary-{secrets.token_urlsafe(12)}"
    platform.apply(secret("later", value))
    wait_until(lambda: digest(value) in logs(platform, "waiter"), "it starts with the new value", 60)
    changed = f"canary-{secrets.token_urlsafe(12)}"
    platform.apply(secret("later", changed))
    want = f"saw {digest(value)} {digest(changed)}"
    wait_until(lambda: want in logs(platform, "waiter"), "the file is updated, the environment is not", 60)
    pid = platform.pid("agent-us-east-1")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: platform.pid("agent-us-east-1") != pid, "another agent process runs")
    again = f"canary-{secrets.token_urlsafe(12)}"
    platform.apply(secret("later", again))
    want = f"saw {digest(value)} {digest(again)}"
    wait_until(lambda: want in logs(platform, "waiter"), "an adopted task gets the update too", 90)
    for pid in task_pids(platform, "waiter"):
        os.kill(pid, signal.SIGKILL)
    want = f"saw {digest(again)} {digest(again)}"
    wait_until(lambda: want in logs(platform, "waiter"), "a restarted task has the new environment", 60)
    platform.kubectl("--context", "global", "-n", "acme", "delete", "workload", "waiter", "--timeout=60s")


def test_change_with_restart_replaces_the_replicas_by_a_rollout(platform: RunningPlatform) -> None:
    first, second = (f"canary-{secrets.token_urlsafe(12)}" for _ in range(2))
    platform.apply(secret("rolled", first), workload("roller", "rolled", onChange="Restart"))
    wait_until(lambda: f"saw {digest(first)}" in logs(platform, "roller"), "it runs with the first value", 60)
    shown = json.loads(platform.kubectl("--context", "global", "-n", "acme", "get", "workload", "roller", "-o", "json"))
    before = shown["status"]["rollout"]["revision"]
    platform.apply(secret("rolled", second))
    wait_until(lambda: f"saw {digest(second)} {digest(second)}" in logs(platform, "roller"), "the new value", 120)
    shown = json.loads(platform.kubectl("--context", "global", "-n", "acme", "get", "workload", "roller", "-o", "json"))
    assert shown["status"]["rollout"]["revision"] != before
    assert digest(second) not in json.dumps(shown)
    platform.kubectl("--context", "global", "-n", "acme", "delete", "workload", "roller", "--timeout=60s")


def test_tenant_ends_with_its_secrets(platform: RunningPlatform) -> None:
    platform.apply(secret("left", "value", tenant="rival"))
    platform.kubectl("--context", "global", "delete", "tenant", "rival", "--timeout=60s")
    found = platform.kubectl("--context", "global", "-n", "rival", "get", "secrets", "-o", "json")
    assert json.loads(found)["items"] == []


def test_key_rotation_under_load_survives_kill(platform: RunningPlatform) -> None:
    """Secrets are written all the time while the key is rotated, and the cell is killed in the middle."""
    values = {f"load-{number}": secrets.token_hex(8) for number in range(40)}
    platform.apply(*(secret(name, value) for name, value in values.items()))
    path = platform.state / "cells" / "global" / "secret-keys.json"
    before = json.loads(path.read_text())["keys"]
    command = ["secrets", "rotate-key", "--state", str(platform.state), "-o", "json"]
    quiet = subprocess.DEVNULL
    rotating = subprocess.Popen([sys.executable, "-m", "holdfast.cli", *command], stdout=quiet, stderr=quiet)
    wait_until(lambda: len(json.loads(path.read_text())["keys"]) == 2, "the new key is in the file")
    cell = platform.pid("cell-global")
    os.kill(cell, signal.SIGKILL)
    rotating.kill()
    rotating.wait()
    wait_until(lambda: platform.pid("cell-global") != cell, "the cell runs again")

    def written() -> bool:
        try:
            platform.apply(secret("load-0", values["load-0"]), secret("extra", secrets.token_hex(8)))
        except AssertionError:
            return False  # the API is not back yet
        return True

    wait_until(written, "the API accepts writes")
    ended = threading.Event()
    writes: list[bool] = []
    writer = threading.Thread(target=lambda: writes.extend(written() for _ in iter(ended.is_set, True)))
    writer.start()
    try:
        done = holdfast(*command, check=False)
    finally:
        ended.set()
        writer.join()
    assert done.returncode == 0, done.stderr
    assert len(writes) > 3 and all(writes), "writes go on during the rotation"
    keys = json.loads(path.read_text())["keys"]
    assert [key["id"] for key in keys] == [json.loads(done.stdout)["key"]] and keys[0]["id"] != before[0]["id"]
    assert path.stat().st_mode & 0o777 == 0o600
    out = platform.kubectl("--context", "global", "-n", "acme", "get", "secrets", "-o", "json")
    held = {i["metadata"]["name"]: base64.b64decode(i["data"]["token"]).decode() for i in json.loads(out)["items"]}
    assert {name: held[name] for name in values} == values
