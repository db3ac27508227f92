"""`holdfast leave`: the counterpart of init and join. Stops the service and removes what was installed.

Nothing is destroyed unasked: the state of a cell, with its store and the CA's key, is removed only on confirmation.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
from pathlib import Path

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.install.etcd_member import ETCD_ROLES, etcd_folder, etcd_service, is_installed, leave_cluster
from holdfast.install.places import Places, Role
from holdfast.install.services import Service
from holdfast.platform.processes import (
    SHIM_SUFFIX,
    TASK_ENV,
    ProcessIdentity,
    identify,
    send_signal,
    task_folders,
    wait_exited,
)
from holdfast.store.etcd.target import EtcdTarget

# Time for tasks to stop by themselves when their agent is removed. After that they are killed.
TASK_STOP_TIMEOUT_S = 10.0


def removal_warning(places: Places, role: Role) -> str:
    """What removing this role destroys, to be confirmed. Raises if the machine does not hold the role."""
    held = places.record(role)
    if held is None:
        known = ", ".join(places.roles()) or "none"
        raise CommandError(
            f"{role}: not installed in {places.state} (found {known})",
            next_step="add --state DIR if it was installed elsewhere",
            code=ExitCode.CONFLICT,
        )
    folder = places.folder(role)
    if role == "global":
        return (
            f"{folder}: the store of the global cell and the key of the CA. Without a backup every region is orphaned."
        )
    if role == "region":
        return f"{folder}: the store of region {held.name} and the CA of its nodes. Its nodes must join another region."
    running = ""
    if tasks := _task_processes(places):
        running = (
            f" Its tasks will be stopped ({len(tasks)} processes); drain it first: holdfast node drain {held.name}."
        )
    return f"{folder}: the identity and task files of node {held.name}.{running}"


def remove_role(places: Places, role: Role, *, keep_state: bool) -> list[str]:
    """Stops and removes the service, the configuration and, unless kept, the state. Returns what was removed."""
    with_etcd = is_installed(places, role)
    if with_etcd and not keep_state:
        _leave_etcd(places, role)
    service = Service(places, role)
    service.remove()
    if with_etcd:
        etcd_service(places, role).remove()
    if role == "agent" and not keep_state:
        _stop_tasks(places)
    removed = [str(service.unit_path)]
    paths = [places.config(role)]
    if role == "global" and not keep_state:
        paths.append(places.kubeconfig)
    for path in paths if not keep_state else ():
        if path.exists():
            path.unlink()
            removed.append(str(path))
    if not keep_state:
        if with_etcd:
            places.config(ETCD_ROLES[role]).unlink(missing_ok=True)
            shutil.rmtree(etcd_folder(places, role), ignore_errors=True)
            removed.append(str(etcd_folder(places, role)))
        shutil.rmtree(places.folder(role), ignore_errors=True)
        removed.append(str(places.folder(role)))
    return removed


def _leave_etcd(places: Places, role: Role) -> None:
    """Gives up this machine's member while it still runs, so that the others keep their majority."""
    try:
        settings = tomllib.loads(places.config(role).read_text(encoding="utf-8"))
        name = json.loads(places.config(ETCD_ROLES[role]).read_text(encoding="utf-8"))["name"]
        endpoints = tuple(settings["etcd_endpoints"].split(","))
        files = {"ca": settings["etcd_ca"], "cert": settings["etcd_cert"], "key": settings["etcd_key"]}
    except (OSError, ValueError, KeyError):
        return
    leave_cluster(EtcdTarget(endpoints=endpoints, **files), name)


def _stop_tasks(places: Places) -> None:
    """Tasks outlive their agent, so that it can be upgraded. When it is removed, nobody else would stop them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _task_processes(places)
        for identity in left:
            send_signal(identity, number)
        for identity in left:
            wait_exited(identity, TASK_STOP_TIMEOUT_S)


def _task_processes(places: Places) -> list[ProcessIdentity]:
    """Processes of the agent's tasks, recognised by their environment, and the shims that started them."""
    folder = places.folder("agent")
    marks = {os.fsencode(f"{TASK_ENV}={path.name}") for path in task_folders(folder) if path.is_dir()}
    found: list[ProcessIdentity] = []
    for entry in os.listdir("/proc") if marks else ():
        identity = identify(int(entry)) if entry.isdigit() else None
        if identity is None:
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has exited, or belongs to another user
        shim = any(word.endswith(SHIM_SUFFIX) for word in command)
        if not marks.isdisjoint(environment) or (
            shim and any(word.startswith(os.fsencode(folder)) for word in command)
        ):
            found.append(identity)
    return found
