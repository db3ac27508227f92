"""Stock kubectl with Secrets and ConfigMaps: create, apply, edit, describe, kustomize, and what the server keeps."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from .conftest import Cell, Kubectl

VALUE = "canary-51c0ffee"


def data(kubectl: Kubectl, name: str) -> dict[str, str]:
    found = json.loads(kubectl.run("get", "secret", name, "-o", "json"))
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def test_kubectl_creates_every_type_of_secret(kubectl: Kubectl, tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*request, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    names = ("generic-one", "registry-one", "tls-one")
    try:
        kubectl.run("create", "secret", "generic", names[0], f"--from-literal=token={VALUE}")
        login = ("--docker-username=a", f"--docker-password={VALUE}", "--docker-email=a@example.com")
        kubectl.run("create", "secret", "docker-registry", names[1], *login)
        kubectl.run("create", "secret", "tls", names[2], f"--cert={certificate}", f"--key={key}")
        table = kubectl.run("get", "secrets").splitlines()
        assert table[0].split() == ["NAME", "TYPE", "DATA", "AGE"]
        assert [line.split()[1] for line in table[1:] if line.split()[0] in names] == [
            "Opaque",
            "kubernetes.io/dockerconfigjson",
            "kubernetes.io/tls",
        ]
        described = kubectl.run("describe", "secret", names[0])
        assert f"token:  {len(VALUE)} bytes" in described and VALUE not in described
        assert data(kubectl, names[0]) == {"token": VALUE}
    finally:
        kubectl.run("delete", "secret", "--ignore-not-found", *names)


def test_kubectl_applies_and_edits_a_secret_that_is_stored_sealed(kubectl: Kubectl, cell: Cell, tmp_path: Path) -> None:
    manifest = tmp_path / "secret.yaml"
    text = "apiVersion: v1\nkind: Secret\nmetadata: {name: applied}\nstringData: {token: %s}\n"
    manifest.write_text(text % "first-value")
    try:
        assert "created" in kubectl.run("apply", "-f", str(manifest))
        manifest.write_text(text % VALUE)
        assert "configured" in kubectl.run("apply", "-f", str(manifest))
        assert data(kubectl, "applied") == {"token": VALUE}
        encoded, other = (base64.b64encode(v.encode()).decode() for v in (VALUE, "edited-value"))
        editor = {"KUBE_EDITOR": f"sed -i s/{encoded}/{other}/"}
        assert "edited" in kubectl.run("edit", "secret", "applied", environment=editor)
        assert data(kubectl, "applied") == {"token": "edited-value"}
        for path in cell.folder.rglob("*"):
            if path.is_file() and "cache" not in path.parts:
                content = path.read_bytes()
                for value in (VALUE, "first-value", "edited-value", encoded, other):
                    assert value.encode() not in content, path
    finally:
        kubectl.run("delete", "secret", "applied", "--ignore-not-found")


def test_kubectl_generates_configuration_with_kustomize(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(
        "secretGenerator:\n- {name: made, literals: [x=y]}\nconfigMapGenerator:\n- {name: made, literals: [x=y]}\n"
    )
    try:
        assert kubectl.run("apply", "-k", str(tmp_path)).count("created") == 2
        kubectl.run("create", "configmap", "plain", "--from-literal=a=b")
        assert "a:" in kubectl.run("describe", "configmap", "plain")
        assert kubectl.run("get", "cm").count("made-") == 1
    finally:
        kubectl.run("delete", "-k", str(tmp_path), "--ignore-not-found")
        kubectl.run("delete", "cm", "plain", "--ignore-not-found")


def test_kubectl_error_about_a_bad_secret_repeats_no_value(kubectl: Kubectl, tmp_path: Path) -> None:
    manifest = tmp_path / "bad.yaml"
    bad = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: bad}}\ndata: {{token: '#{VALUE}'}}\n"
    manifest.write_text(bad)
    refused = kubectl.run("create", "--validate=false", "-f", str(manifest), code=1)
    assert "data[token]" in refused and VALUE not in refused
