"""What a task may see and do, set up by a process that is about to become the task or a command beside it.

- It has the uid of the task, no capabilities, and can gain none (`no_new_privs`).
- `/tmp`, `/var/tmp` and `/dev/shm` are its own, where the kernel allows mount namespaces.
- A directory that others may not enter, such as the agent's state, is empty for it, except for the paths it was given.

Nothing here is undone: it runs between fork and exec. Like all `shim*` modules it imports only the core library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from holdfast.agent.shim_guard import libc

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAPABILITIES = 64
"""Upper bound of capability numbers. Dropping one that the kernel does not know fails without an effect."""


class VolumeNotMounted(OSError):
    """A volume could not be mounted into the view. The template caused it as likely as the node."""


class Confinement:
    """The settings of a launch that decide who the task is and what it sees. `uid` 0: the user of the agent."""

    def __init__(self, settings: dict[str, str], visible: list[str]) -> None:
        self.uid, self.gid = int(settings.get("uid", "0")), int(settings.get("gid", "0"))
        self.user_groups = [int(number) for number in settings.get("user_groups", "").split()]
        self.own_uid = settings.get("own_uid") == "1"
        self.is_root = settings.get("root") == "1"
        """Node and tenant allow this task to be root: it keeps the capabilities of the agent."""
        self.view = settings.get("view", "")
        """Directory with the task's own `/tmp` and `/var/tmp`; empty: the task sees the file system of the node."""
        self.visible = visible
        self.layer = settings.get("layer", "")
        """Directory over which the root of a container is made: a writable layer above the read-only `layer_lower`."""
        self.layer_lower, self.layer_bytes = settings.get("layer_lower", ""), int(settings.get("layer_bytes", "0"))


def enter_view(confinement: Confinement, volumes: list[dict[str, object]] | None = None) -> None:
    """A mount and an IPC namespace of its own. Raises OSError: without them the task does not start.

    `volumes` are mounted last, so that nothing of the view covers them.
    """
    if confinement.layer:
        _make_layer(confinement)
    if not confinement.view:
        return
    check_call(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    if volumes:
        from holdfast.agent.shim_mounts import hold_sources, make_places, make_root, mount_volumes

        try:
            make_root(volumes)
            sources = hold_sources(volumes)
        except OSError as error:
            raise VolumeNotMounted(error.errno, error.strerror) from error
    private = {"/tmp": f"{confinement.view}/tmp", "/var/tmp": f"{confinement.view}/var-tmp"}
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*private.values(), *confinement.visible)}
    for place, source in private.items():
        if os.path.isdir(place):
            mount(f"/proc/self/fd/{held[source]}", place, None, MS_BIND)
    if os.path.isdir("/dev/shm"):
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for path in confinement.visible:
        _hide_private_parents(path)
        # Not by whether a parent was missing: an earlier program of the task has left the parents in the task's /tmp.
        if not os.path.samestat(os.fstat(held[path]), os.stat(path)):
            mount(f"/proc/self/fd/{held[path]}", path, None, MS_BIND | MS_REC)
    if volumes:
        try:
            make_places(volumes)
            mount_volumes(volumes, sources)
        except OSError as error:
            raise VolumeNotMounted(error.errno, error.strerror) from error


def _make_layer(confinement: Confinement) -> None:
    """`layer`/root: the image with a layer above it that takes all writes, in memory and of bounded size.

    The mounts exist only in this mount namespace, so they end with the container, whatever kills it.
    """
    check_call(libc.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    place = confinement.layer
    mount("tmpfs", place, "tmpfs", MS_NODEV, f"mode=755,size={confinement.layer_bytes}")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{place}/{name}", 0o755)
    os.chmod(f"{place}/upper", os.stat(confinement.layer_lower).st_mode & 0o7777)
    options = f"lowerdir={confinement.layer_lower},upperdir={place}/upper,workdir={place}/work"
    mount("overlay", f"{place}/root", "overlay", MS_NOSUID | MS_NODEV, options)


def can_make_layers(folder: str) -> bool:
    """Whether the kernel gives this process overlays. Tried in a child, because it cannot be undone."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for name in ("lower", "layer"):
                os.makedirs(f"{folder}/{name}", exist_ok=True)
            settings = {"layer": f"{folder}/layer", "layer_lower": f"{folder}/lower", "layer_bytes": str(1 << 20)}
            _make_layer(Confinement(settings, []))
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _hide_private_parents(path: str) -> None:
    """Makes `path` reachable without opening what lies beside it: a parent that others may not enter is covered by an
    empty directory.
    """
    place = ""
    for part in path.strip("/").split("/"):
        place += "/" + part
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            os.mkdir(place, 0o755)  # below a private directory or one that was just covered
            continue
        if place != path and not mode & stat.S_IXOTH:
            mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def become_user(confinement: Confinement) -> None:
    """Takes the uid, drops every capability, and rules out to gain any."""
    if not confinement.is_root:
        for number in range(CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    if confinement.uid:
        os.setgroups(confinement.user_groups)
        os.setresgid(confinement.gid, confinement.gid, confinement.gid)
        os.setresuid(confinement.uid, confinement.uid, confinement.uid)
    check_call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """As `os.execvpe`, which imports a module: the user of a task may not be able to read the agent's Python."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError | None = None
    for folder in env.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except OSError as error:
            if failure is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failure = error
    raise failure if failure is not None else FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def can_make_views() -> bool:
    """Whether the kernel gives this process mount namespaces. Tried in a child, because it cannot be undone."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check_call(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")
            mount(None, "/", None, MS_REC | MS_PRIVATE)
            mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=1m")
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def join_view(pidfd: int) -> None:
    """Enters the namespaces of a running task."""
    check_call(libc.setns(pidfd, CLONE_NEWNS | CLONE_NEWIPC), "enter the namespaces of the task")


def mount(source: str | None, place: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = [text.encode() if text is not None else None for text in (source, place, kind)]
    result = libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), options.encode() or None)
    check_call(result, f"mount {place}")


def check_call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
