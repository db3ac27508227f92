"""The OCI runtime configuration of a task that runs an image. Pure, apart from the paths that it names.

What the image says about command, environment and directory applies unless the template says otherwise, with the rules
of Kubernetes. What it says about the user decides nothing here: a task has a uid of its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.records import TASK_MARK_ENV
from holdfast.model.reasons import Reason
from holdfast.registry.manifests import ImageConfig

DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Capabilities of a task that node and tenant allow to be root. Without that, a task has none.
ROOT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE")

_NAMESPACES = ("pid", "ipc", "uts", "mount")
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware")
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_NODE_FILES = ("/etc/resolv.conf", "/etc/hosts")


def container_args(task: Task, image: ImageConfig) -> list[str]:
    """`command` replaces entry point and cmd; `args` alone replaces only cmd."""
    template = task.template
    if template.command:
        args = [*template.command, *template.args]
    elif template.args:
        args = [*image.entrypoint, *template.args]
    else:
        args = [*image.entrypoint, *image.cmd]
    if not args:
        message = f"image {template.image}: has neither entry point nor cmd; next: set `command`"
        raise StartFailed(Reason.TEMPLATE_UNUSABLE, message)
    return args


def container_env(task: Task, image: ImageConfig) -> list[str]:
    known = dict(pair.split("=", 1) for pair in (DEFAULT_PATH, *image.env))
    return [f"{name}={value}" for name, value in {**known, **task.env, TASK_MARK_ENV: task.id}.items()]


def runtime_config(
    task: Task, image: ImageConfig, *, root: str, writable: bool, identity: Mapping[str, object]
) -> dict[str, Any]:
    """`identity` is what `TaskUsers.identify` says. `writable`: the root is the task's own layer."""
    process: dict[str, Any] = {
        "terminal": False,
        "args": container_args(task, image),
        "env": container_env(task, image),
        "cwd": posixpath.join("/", image.working_dir, task.template.working_dir),
        "noNewPrivileges": True,
        "capabilities": {},
        "user": {"uid": image.uid, "gid": image.gid},
    }
    if "uid" in identity:
        process["user"] = {"uid": identity["uid"], "gid": identity["gid"]}
    elif "root" in identity:
        process["capabilities"] = {kind: list(ROOT_CAPABILITIES) for kind in ("bounding", "effective", "permitted")}
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": root, "readonly": not writable},
        "hostname": task.replica,
        "mounts": _mounts(process["user"], writable=writable),
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }


def _mounts(user: Mapping[str, object], *, writable: bool) -> list[dict[str, Any]]:
    private = ["nosuid", "nodev"]
    found: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": [*private, "noexec", "mode=1777", "size=64m"],
        },
    ]
    if not writable:
        # A runtime gives a place that the image does not have mode 0755, so it must belong to the user of the task.
        own = [*private, "mode=1777", "size=64m", f"uid={user['uid']}", f"gid={user['gid']}"]
        found += [
            {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": own}
            for place in ("/tmp", "/run", "/var/tmp")
        ]
    bound = ["rbind", "ro", *private, "noexec"]
    found += [{"destination": name, "type": "none", "source": name, "options": bound} for name in _NODE_FILES]
    return found
