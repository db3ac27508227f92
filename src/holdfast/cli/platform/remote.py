"""A platform on other machines, seen through a kubeconfig: the global cell's context, and its regions by their names.

The global cell says which regions there are and where. A region is asked with the context of its own name, or else at
its `spec.endpoint` with the global cell's credentials. Keys that a kubeconfig embeds are put into files of a private
folder, as TLS wants files, and removed when the command ends. Nothing here writes to the platform.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.http import Api

GLOBAL = "global"


class Access(msgspec.Struct, frozen=True):
    """How to reach one cell. Without `ca` the machine's own authorities are trusted."""

    url: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str = ""

    def api(self, name: str, *, token: str = "", timeout_s: float = 5.0) -> Api:
        if token:
            return Api(self.url, name=name, ca=self.ca, token=token, timeout_s=timeout_s)
        return Api(self.url, name=name, ca=self.ca, cert=self.cert, key=self.key, token=self.token, timeout_s=timeout_s)


@cache
def contexts(path: Path) -> dict[str, Access]:
    """Every context of the file that can be used, by its name; the global cell's is called `global` here."""
    data = _read(path)
    clusters = {c["name"]: c.get("cluster") or {} for c in data.get("clusters") or ()}
    users = {u["name"]: u.get("user") or {} for u in data.get("users") or ()}
    found: dict[str, Access] = {}
    for entry in data.get("contexts") or ():
        context = entry.get("context") or {}
        cluster, user = clusters.get(context.get("cluster")), users.get(context.get("user"), {})
        if cluster is not None and cluster.get("server"):
            found[entry["name"]] = _access(path, cluster, user)
    if GLOBAL not in found:
        current = data.get("current-context", "")
        if current not in found:
            raise Stop(
                f"{path} names no global cell",
                why=f"it has the contexts {', '.join(found) or '(none)'}, and none of them is current",
                next_step=f"call the global cell's context {GLOBAL!r}, or make it the current one",
                code=Exit.USAGE,
            )
        found[GLOBAL] = found[current]
    return found


def access(path: Path, cell: str, endpoint: str = "") -> Access:
    known = contexts(path)
    if cell in known:
        return known[cell]
    if not endpoint:
        raise Stop(f"{path} has no context {cell!r}", why=f"it has {', '.join(known)}", code=Exit.USAGE)
    return msgspec.structs.replace(known[GLOBAL], url=endpoint)


def region_objects(path: Path) -> list[dict[str, Any]]:
    """The regions as the global cell knows them; while it does not answer, those the kubeconfig has contexts for."""
    api = access(path, GLOBAL).api(GLOBAL)
    try:
        return api.list("regions")
    except Stop as stop:
        others = [name for name, there in contexts(path).items() if there.url != api.url]
        if stop.code is not Exit.UNREACHABLE or not others:
            raise
        return [{"metadata": {"name": name}, "spec": {}} for name in others]
    finally:
        api.close()


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as wrong:
        raise Stop(f"{path} cannot be read", why=" ".join(str(wrong).split()), code=Exit.USAGE) from None
    if not isinstance(data, dict) or data.get("kind") != "Config":
        raise Stop(
            f"{path} is no kubeconfig",
            next_step="--state names a platform's directory, or a kubeconfig with a context for each cell",
            code=Exit.USAGE,
        )
    return data


def _access(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Access:
    token = user.get("token", "")
    if not token and user.get("tokenFile"):
        token = (path.parent / user["tokenFile"]).read_text().strip()
    return Access(
        url=cluster["server"],
        ca=_file(path, cluster, "certificate-authority"),
        cert=_file(path, user, "client-certificate"),
        key=_file(path, user, "client-key"),
        token=token,
    )


def _file(path: Path, entry: dict[str, Any], name: str) -> Path | None:
    """Where the certificate or key is; embedded ones get a file. Relative to the kubeconfig, as for kubectl."""
    if embedded := entry.get(f"{name}-data"):
        try:
            return _kept(base64.b64decode(embedded, validate=True))
        except (binascii.Error, ValueError) as wrong:
            raise Stop(f"{path}: {name}-data is not base64", why=str(wrong), code=Exit.USAGE) from None
    return path.parent / entry[name] if entry.get(name) else None


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="holdfast-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def _kept(data: bytes) -> Path:
    handle, name = tempfile.mkstemp(dir=_folder(), suffix=".pem")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return Path(name)
