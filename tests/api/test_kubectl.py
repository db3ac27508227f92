"""Stock kubectl against a real server, with every version found on this machine."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from .conftest import Cell, Kubectl, eventually

WORKLOAD = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata:
  name: {name}
  labels: {{app: {name}, tier: front}}
spec:
  replicas: {replicas}
  template:
    command: [python3, -m, http.server]
    ports: [{{name: http}}]
    resources: {{cpu: 500m, memory: 1Gi}}
"""
PATH = "/apis/holdfast.dev/v1/namespaces/shop/workloads"


@pytest.fixture(autouse=True)
def clean(cell: Cell) -> None:
    """Every test starts without workloads; finalizers are removed as the assign controller would."""
    _, found = cell.call("GET", PATH)
    for item in found["items"]:
        drop(cell, item["metadata"]["name"])


def drop(cell: Cell, name: str) -> None:
    cell.call("DELETE", f"{PATH}/{name}")
    finish(cell, name)


def finish(cell: Cell, name: str) -> None:
    """Removes the finalizer, as the assign controller does once nothing of a workload is left."""
    patch = json.dumps({"metadata": {"finalizers": None}}).encode()
    cell.call("PATCH", f"{PATH}/{name}", patch, content_type="application/merge-patch+json")


def manifest(folder: Path, name: str = "web", replicas: int = 3) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(WORKLOAD.format(name=name, replicas=replicas))
    return str(path)


def old(kubectl: Kubectl) -> bool:
    return kubectl.binary.endswith(".tools/bin/kubectl")


def test_kubectl_api_resources_lists_public_kinds(kubectl: Kubectl) -> None:
    output = kubectl.run("api-resources")
    for word in ("workloads", "wl", "tenants", "regions", "namespaces", "events", "leases"):
        assert word in output
    assert "leasepages" not in output and "terms" not in output
    assert "holdfast.dev/v1" in kubectl.run("api-versions")


def test_kubectl_creates_gets_and_deletes(kubectl: Kubectl, cell: Cell, tmp_path: Path) -> None:
    output = kubectl.run("create", "-f", manifest(tmp_path))
    assert "workload.holdfast.dev/web created" in output
    table = kubectl.run("get", "workloads").splitlines()
    assert table[0].split() == ["NAME", "READY", "TYPE", "PRIORITY", "REGIONS", "PENDING", "AGE"]
    assert table[1].split()[:4] == ["web", "0/3", "Service", "standard"]
    assert "COMMAND" in kubectl.run("get", "wl", "-o", "wide")
    assert "AlreadyExists" in kubectl.run("create", "-f", manifest(tmp_path), code=1)
    threading.Timer(1.0, finish, (cell, "web")).start()
    assert "deleted" in kubectl.run("delete", "workload", "web", "--timeout=20s")
    assert "NotFound" in kubectl.run("get", "workload", "web", code=1)


def test_kubectl_get_supports_all_output_formats(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    kubectl.run("create", "-f", manifest(tmp_path, "api", 1))
    assert "kind: Workload" in kubectl.run("get", "wl", "web", "-o", "yaml")
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.spec.replicas}") == "3"
    assert kubectl.run("get", "wl", "-o", "name").split() == ["workload.holdfast.dev/api", "workload.holdfast.dev/web"]
    assert "web" in kubectl.run("get", "wl", "-A") and "shop" in kubectl.run("get", "wl", "-A")
    only = kubectl.run("get", "wl", "-l", "app in (web)")
    assert "web" in only and "api" not in only
    assert "web" not in kubectl.run("get", "wl", "-l", "app!=web,tier")
    assert "web" in kubectl.run("get", "wl", "--field-selector=metadata.name=web")
    assert "field label not supported" in kubectl.run("get", "wl", "--field-selector=spec.nonsense=1", code=1)
    custom = kubectl.run(
        "get", "wl", "-o", "custom-columns=N:.metadata.name,R:.spec.replicas", "--sort-by=.spec.replicas"
    )
    assert [line.split() for line in custom.splitlines()] == [["N", "R"], ["api", "1"], ["web", "3"]]
    assert "api" in kubectl.run("get", "wl", "--chunk-size=1") and "web" in kubectl.run("get", "wl", "--chunk-size=1")
    assert "web" in kubectl.run("get", "all") and "tenant.holdfast.dev/shop" in kubectl.run("get", "holdfast")


def test_kubectl_apply_twice_is_unchanged(kubectl: Kubectl, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert "created" in kubectl.run("apply", "-f", path)
    assert "unchanged" in kubectl.run("apply", "-f", path)
    manifest(tmp_path, replicas=5)
    assert "configured" in kubectl.run("apply", "-f", path)
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}") == "5 2"
    assert "replicas: 5" in kubectl.run("apply", "view-last-applied", "wl", "web", "-o", "yaml")


def test_kubectl_server_side_apply_reports_conflict(kubectl: Kubectl, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert "serverside-applied" in kubectl.run("apply", "--server-side", "-f", path)
    before = kubectl.run("get", "wl", "web", "-o", "jsonpath={.metadata.resourceVersion}")
    assert "serverside-applied" in kubectl.run("apply", "--server-side", "-f", path)
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.metadata.resourceVersion}") == before
    kubectl.run("scale", "wl", "web", "--replicas=7")
    output = kubectl.run("apply", "--server-side", "-f", path, code=1)
    assert "conflict" in output and ".spec.replicas" in output
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", path)
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.spec.replicas}") == "3"


def test_kubectl_server_side_apply_removes_dropped_fields(newest: Kubectl, tmp_path: Path) -> None:
    text = WORKLOAD.format(name="web", replicas=3)
    path = tmp_path / "web.yaml"
    path.write_text(text.replace("port: 0}", "port: 0}, {name: admin, port: 0}"))
    newest.run("apply", "--server-side", "-f", str(path))
    path.write_text(text.replace("tier: front", "color: red"))
    newest.run("apply", "--server-side", "-f", str(path))
    found = json.loads(newest.run("get", "wl", "web", "-o", "json"))
    assert [p["name"] for p in found["spec"]["template"]["ports"]] == ["http"]
    assert found["metadata"]["labels"] == {"app": "web", "color": "red"}


def test_kubectl_migrates_to_server_side_apply_once(newest: Kubectl, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    newest.run("apply", "-f", path)
    newest.run("apply", "--server-side", "-f", path)
    shown = json.loads(newest.run("get", "wl", "web", "-o", "json", "--show-managed-fields"))
    managers = {(m["manager"], m["operation"]) for m in shown["metadata"]["managedFields"]}
    assert managers == {("kubectl", "Apply"), ("kubectl-last-applied", "Apply")}
    manifest(tmp_path, replicas=4)
    before = newest.cell.log().count('"verb":"patch"')
    newest.run("apply", "--server-side", "-f", path)
    # A request is logged just after kubectl has received its response.
    deadline = time.monotonic() + 5
    while newest.cell.log().count('"verb":"patch"') == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert newest.cell.log().count('"verb":"patch"') == before + 1, "the migration must not be repeated"
    assert newest.run("get", "wl", "web", "-o", "jsonpath={.spec.replicas}") == "4"


def test_kubectl_diff_and_dry_run_store_nothing(kubectl: Kubectl, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    kubectl.run("apply", "-f", path)
    before = kubectl.run("get", "wl", "web", "-o", "jsonpath={.metadata.resourceVersion}")
    assert kubectl.run("diff", "-f", path) == "", "the applied object has no difference"
    manifest(tmp_path, replicas=9)
    output = kubectl.run("diff", "-f", path, code=1)
    # Only changed lines count: kubectl before 1.23 also compares managedFields, whose time changes with the second, and
    # prints the unchanged resourceVersion below it as context.
    changed = [line for line in output.splitlines() if line.startswith(("+", "-"))]
    assert "+  replicas: 9" in changed and not any("resourceVersion" in line for line in changed)
    kubectl.run("apply", "-f", path, "--dry-run=server")
    kubectl.run("apply", "-f", path, "--dry-run=client")
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.metadata.resourceVersion}") == before


def test_kubectl_edit_changes_object(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/replicas: 3/replicas: 2/" "$1"\n')
    editor.chmod(0o755)
    assert "edited" in kubectl.run("edit", "wl", "web", environment={"EDITOR": str(editor)})
    assert kubectl.run("get", "wl", "web", "-o", "jsonpath={.spec.replicas}") == "2"


def test_kubectl_labels_annotates_patches_and_scales(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    assert "labeled" in kubectl.run("label", "wl", "web", "color=red")
    assert "not labeled" in kubectl.run("label", "wl", "web", "color=red", "--overwrite")
    assert "annotate" in kubectl.run("annotate", "wl", "web", "note=hello")
    assert "patched" in kubectl.run("patch", "wl", "web", "--type=merge", "-p", '{"spec":{"replicas":4}}')
    operations = '[{"op":"test","path":"/spec/replicas","value":4},{"op":"replace","path":"/spec/replicas","value":5}]'
    assert "patched" in kubectl.run("patch", "wl", "web", "--type=json", "-p", operations)
    refused = kubectl.run("patch", "wl", "web", "-p", '{"spec":{"replicas":1}}', code=1)
    assert ("UnsupportedMediaType" if old(kubectl) else "is not supported by") in refused
    assert "scaled" in kubectl.run("scale", "wl", "web", "--replicas=6")
    assert "scaled" in kubectl.run("scale", "wl", "web", "--current-replicas=6", "--replicas=2")
    shown = "jsonpath={.spec.replicas} {.metadata.labels.color} {.metadata.annotations.note}"
    assert kubectl.run("get", "wl", "web", "-o", shown) == "2 red hello"


def test_kubectl_replace_with_stale_revision_is_refused(newest: Kubectl, cell: Cell, tmp_path: Path) -> None:
    newest.run("create", "-f", manifest(tmp_path))
    text = newest.run("get", "wl", "web", "-o", "yaml").replace("replicas: 3", "replicas: 8")
    assert "replaced" in newest.run("replace", "-f", "-", given=text)
    output = newest.run("replace", "-f", "-", given=text, code=1)
    assert "the object has been modified" in output


def test_kubectl_shows_validation_errors(kubectl: Kubectl, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(WORKLOAD.format(name="web", replicas=3).replace("replicas:", "replicaz:"))
    output = kubectl.run("create", "-f", str(bad), code=1)
    assert "replicaz" in output
    bad.write_text(WORKLOAD.format(name="worse", replicas=-1).replace("[python3, -m, http.server]", "[]"))
    output = kubectl.run("create", "-f", str(bad), code=1)
    assert "spec.replicas" in output and "spec.template.command: Required value" in output
    bad.write_text(WORKLOAD.format(name="web", replicas='"three"'))
    assert "integer" in kubectl.run("create", "-f", str(bad), "--validate=false", code=1)


def test_kubectl_describe_shows_events(kubectl: Kubectl, cell: Cell, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    about = {"kind": "Workload", "namespace": "shop", "name": "web"}
    notice = {"about": about, "reason": "Placed", "message": "all three have a place"}
    code, _ = cell.call("POST", "/notify/v1", {"component": "scheduler", "notices": [notice]}, user="controller")
    assert code == 200
    output = kubectl.run("describe", "wl", "web")
    assert "Placed" in output and "all three have a place" in output and "scheduler" in output
    assert "Placed" in kubectl.run("get", "events")


def test_kubectl_watch_shows_changes(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    watching = kubectl.start("get", "wl", "web", "-w", "-o", "jsonpath={.spec.replicas}{'\\n'}")
    seen: list[str] = []

    def read() -> None:
        assert watching.stdout is not None
        seen.extend(line.strip() for line in watching.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    eventually(lambda: "3" in seen)
    kubectl.run("scale", "wl", "web", "--replicas=4")
    eventually(lambda: "4" in seen)
    watching.terminate()
    watching.wait(10)
    reader.join(5)


def test_kubectl_waits_for_condition(kubectl: Kubectl, cell: Cell, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    waiting = kubectl.start("wait", "--for=condition=Serving", "wl/web", "--timeout=30s")
    condition = {"type": "Serving", "status": "True", "reason": "AllServing", "message": "3 of 3"}
    patch = json.dumps({"status": {"conditions": [condition]}}).encode()
    code, output = cell.call(
        "PATCH", f"{PATH}/web/status", patch, user="controller", content_type="application/merge-patch+json"
    )
    assert code == 200, output
    printed, _ = waiting.communicate(timeout=40)
    assert "condition met" in printed, printed


def test_kubectl_delete_honours_finalizers_and_cascade(kubectl: Kubectl, cell: Cell, tmp_path: Path) -> None:
    kubectl.run("create", "-f", manifest(tmp_path))
    kubectl.run("delete", "wl", "web", "--wait=false", "--cascade=foreground")
    found = json.loads(kubectl.run("get", "wl", "web", "-o", "json"))
    assert found["metadata"]["deletionTimestamp"]
    assert found["metadata"]["finalizers"] == ["holdfast.dev/assignments", "foregroundDeletion"]
    assert found["metadata"]["generation"] == 2
    finish(cell, "web")
    eventually(lambda: "NotFound" in kubectl.run("get", "wl", "web", code=None))
    kubectl.run("create", "-f", manifest(tmp_path))
    kubectl.run("create", "-f", manifest(tmp_path, "api"))
    kubectl.run("delete", "wl", "--all", "--wait=false")
    assert kubectl.run("get", "wl", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}").count("T") == 2


def test_kubectl_explain_shows_fields(kubectl: Kubectl) -> None:
    output = kubectl.run("explain", "workload.spec.template")
    assert "command" in output and "<[]string>" in output
    assert "maxSurge" in kubectl.run("explain", "workload.spec.rollout")
    assert "recovery" in kubectl.run("explain", "workload", "--recursive")


def test_kubectl_explain_shows_the_description_of_a_list_items_type_once(kubectl: Kubectl) -> None:
    """Regression: it was printed for the item, and again for the type of the item."""
    output = kubectl.run("explain", "schedulerpolicy.spec.rules.filterExpressions")
    assert " ".join(output.split()).count("A custom filter: a CEL expression") == 1
    assert "CEL expressions that a node must satisfy" in kubectl.run("explain", "schedulerpolicy.spec.rules")


def test_kubectl_auth_commands_match_authorization(kubectl: Kubectl) -> None:
    assert "yes" in kubectl.run("auth", "can-i", "create", "workloads", user="token")
    assert "no" in kubectl.run("auth", "can-i", "create", "workloads", "-n", "default", user="token", code=1)
    assert "no" in kubectl.run("auth", "can-i", "delete", "regions", user="token", code=1)
    assert "workloads.holdfast.dev" in kubectl.run("auth", "can-i", "--list", user="token")
    if kubectl.binary.rpartition(".")[2] in ("28", "29", "30", "31", "32", "33"):
        assert "tim" in kubectl.run("auth", "whoami", user="token")
    output = kubectl.run("get", "wl", "-n", "default", user="token", code=1)
    assert (
        'User "tim" cannot list resource "workloads" in API group "holdfast.dev" in the namespace "default"' in output
    )
    assert "ada" not in kubectl.run("get", "wl", "--as=tim", "--as-group=holdfast:tenant:shop")
    assert "cannot impersonate" in kubectl.run("get", "wl", "--as=ada", user="token", code=1)


def test_kubectl_namespace_is_tenant(kubectl: Kubectl, cell: Cell) -> None:
    name = "team-" + kubectl.binary.replace(".", "").replace("/", "")[-4:]
    assert "created" in kubectl.run("create", "namespace", name)
    assert name in kubectl.run("get", "tenants")
    assert "labeled" in kubectl.run("label", "ns", name, "team=red")
    assert kubectl.run("get", "tenant", name, "-o", "jsonpath={.metadata.labels.team}") == "red"
    text = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, annotations: {{a: b}}}}\n"
    assert "configured" in kubectl.run("apply", "-f", "-", given=text)
    kubectl.run("delete", "ns", name, "--wait=false")
    assert "Terminating" in kubectl.run("get", "ns", name)
    patch = json.dumps({"metadata": {"finalizers": None}}).encode()
    cell.call("PATCH", f"/apis/holdfast.dev/v1/tenants/{name}", patch, content_type="application/merge-patch+json")
    assert "NotFound" in kubectl.run("get", "ns", name, code=1)


def test_kubectl_applies_lists_and_several_documents(newest: Kubectl, tmp_path: Path) -> None:
    both = manifest(tmp_path), manifest(tmp_path, "api")
    (tmp_path / "both.yaml").write_text("---".join(Path(p).read_text() for p in both))
    newest.run("apply", "-f", str(tmp_path / "both.yaml"))
    listed = newest.run("get", "wl", "-o", "yaml")
    assert "kind: List" in listed
    assert newest.run("apply", "-f", "-", given=listed).count("workload.holdfast.dev/") == 2
    assert "ok" in newest.run("get", "--raw", "/readyz")
