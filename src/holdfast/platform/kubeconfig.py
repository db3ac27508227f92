"""A kubeconfig of the platform: one context per cell, with embedded certificates, so that the file can be copied."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from holdfast.platform.credentials import CredentialFiles, Credentials
from holdfast.platform.layout import Layout, Platform, write_atomically

USER = "holdfast-operator"


def kubeconfig_of(layout: Layout, platform: Platform, *, token: str = "", person: str = "") -> dict[str, Any]:
    """The kubeconfig of the operator, of the token's user if `token` is set, or of a person with a certificate."""
    held = Credentials(layout)
    files = held.person(person) if person else held.operator()
    user = {"token": token} if token else _certificate(files)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "global",
        "clusters": [
            {"name": f"holdfast-{name}", "cluster": {"server": url, "certificate-authority-data": _text(files.ca)}}
            for name, url in platform.cells
        ],
        "contexts": [
            {"name": name, "context": {"cluster": f"holdfast-{name}", "user": USER}} for name, _ in platform.cells
        ],
        "users": [{"name": USER, "user": user}],
        "preferences": {},
    }


def write_kubeconfig(layout: Layout, platform: Platform, path: Path, *, token: str = "", person: str = "") -> None:
    """Writes the kubeconfig as JSON, which is valid YAML."""
    write_atomically(
        path, json.dumps(kubeconfig_of(layout, platform, token=token, person=person), indent=2).encode() + b"\n"
    )


def _certificate(files: CredentialFiles) -> dict[str, str]:
    return {"client-certificate-data": _text(files.cert), "client-key-data": _text(files.key)}


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
