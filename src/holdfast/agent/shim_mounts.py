"""Mounts the volumes of a run: first in the shim, then in the view of each of its programs.

- The shim has a mount namespace of its own and mounts each volume at `volumes/NAME` there. When the shim and all its
  programs are gone, the kernel undoes these mounts, whoever killed them.
- Paths of tenants are walked one name at a time without following links, and mounts go to the descriptor that was
  reached. No link that a task made leads a mount elsewhere.
- A mount point that the node lacks is made in the view only: its parent directory is replaced by a copy of its entries.

Nothing is imported after the first mount into a view: the code would be read from what the tenant mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

from holdfast.agent.shim_checks import fork_measurement
from holdfast.agent.shim_confine import CLONE_NEWNS, MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, check_call, mount
from holdfast.agent.shim_guard import boottime, libc
from holdfast.agent.shim_launch import Launch

MS_RDONLY, MS_REMOUNT, MS_UNBINDABLE, MNT_DETACH = 1, 32, 1 << 17, 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# Entries of a directory in which a mount point is missing. Each entry costs a mount, so a larger one is refused.
MIRRORED_ENTRIES_MAX = 512
# Pause between two measurements of the volumes without a file system of their own.
MEASURE_EVERY_S = 2.0
# A measurement takes at most this share of the time, however large the volume is.
MEASURE_SHARE = 0.1

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Volume = dict[str, object]


def stage_volumes(launch: Launch) -> None:
    """Mounts the volumes in the shim's own mount namespace. Raises OSError, which names the volume."""
    staged = [volume for volume in launch.volumes if volume["kind"] in ("tmpfs", "image", "host")]
    kept = [volume for volume in launch.volumes if volume.get("keep") and os.geteuid() == 0]
    if staged:
        _stage(staged)
    for volume in kept:
        hand_over(str(volume["stage"]), int(str(volume["uid"])), int(str(volume["gid"])))


def _stage(staged: list[Volume]) -> None:
    check_call(libc.unshare(CLONE_NEWNS), "unshare the mounts of the volumes")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    for volume in staged:
        place = str(volume["stage"])
        if volume["kind"] == "tmpfs":
            options = f"size={volume['size']},mode=0700,uid={volume['uid']},gid={volume['gid']}"
            mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
        elif volume["kind"] == "image":
            _mount_image(volume, place)
            with contextlib.suppress(OSError):  # a persistent volume has lost it, or the tenant has one of its own
                os.rmdir(f"{place}/lost+found")
        else:
            held = walk(str(volume["base"]), str(volume["rest"]))
            mount(f"/proc/self/fd/{held}", place, None, MS_BIND)
            os.close(held)
            _restrict(place, read_only=bool(volume["ro"]))


def hand_over(place: str, uid: int, gid: int) -> None:
    """Gives a persistent volume to the user of this run: each task has a user of its own. Nothing of the tenant runs.

    Only entries of the former user are changed, so that a hard link to a file of somebody else stays theirs. The volume
    itself is changed last: an interrupted change begins again. Links are not followed.
    """
    former = os.lstat(place).st_uid
    if former == uid:
        return
    try:
        for _, folders, files, held in os.fwalk(place, follow_symlinks=False):
            for name in (*folders, *files):
                if os.stat(name, dir_fd=held, follow_symlinks=False).st_uid == former:
                    os.chown(name, uid, gid, dir_fd=held, follow_symlinks=False)
    except RecursionError:
        raise OSError(40, f"change the owner of volume {place}: its directories are nested too deeply") from None
    os.chown(place, uid, gid)


def _mount_image(volume: Volume, place: str) -> None:
    """The program `mount` sets up the loop device and lets the kernel free it with the last mount of it."""
    argv = ["mount", "-o", "loop,nosuid,nodev", str(volume["image"]), place]
    pid = os.posix_spawnp("mount", argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        raise OSError(5, f"mount volume {volume['name']}: the program mount failed ({status >> 8})")


def walk(base: str, rest: str) -> int:
    """A descriptor of the directory or file `rest` below `base`. Links below `base` are refused."""
    held = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in rest.split("/") if part]
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC if last else _WALK
        try:
            lower = os.open(part, flags, dir_fd=held)
        except OSError as error:
            raise OSError(error.errno, f"mount {base}/{rest}: {part}: {error.strerror}") from error
        os.close(held)
        held = lower
    if stat.S_ISLNK(os.fstat(held).st_mode):
        raise OSError(40, f"mount {base}/{rest}: it is a symbolic link")
    return held


def _restrict(place: str, *, read_only: bool) -> None:
    """A bind mount takes its restrictions only when it is mounted again."""
    flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if read_only else 0)
    mount(None, place, None, MS_REMOUNT | MS_BIND | flags)


# --- the view of one program ---------------------------------------------------------------------------------------


def hold_sources(volumes: list[Volume]) -> list[int]:
    return [os.open(str(volume["stage"]), os.O_PATH | os.O_CLOEXEC) if volume["place"] else -1 for volume in volumes]


def mount_volumes(volumes: list[Volume], sources: list[int]) -> None:
    for volume, source in zip(volumes, sources, strict=True):
        place = str(volume["place"])
        if not place:
            continue
        target = walk("/", place)
        mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", None, MS_BIND)
        os.close(target)
        _restrict(place, read_only=bool(volume["ro"]))


def make_root(volumes: list[Volume]) -> None:
    """Makes the mount points whose first directory the node lacks, in a root directory of this namespace."""
    places = [str(volume["place"]) for volume in volumes if volume["place"]]
    missing = [place for place in places if not os.path.lexists("/" + place.split("/")[1])]
    if missing:
        target = _mirror("/")
        for place in missing:
            os.makedirs(f"{target}{place}", 0o755, exist_ok=True)
        _change_root(target)


def make_places(volumes: list[Volume]) -> None:
    """Makes the other missing mount points, in this namespace only."""
    for volume in volumes:
        place = str(volume["place"])
        parts = [part for part in place.split("/") if part]
        reached = ""
        for index, part in enumerate(parts):
            try:
                mode = os.lstat(f"{reached}/{part}").st_mode
            except FileNotFoundError:
                _mirror(reached)
                os.makedirs("/".join([reached, *parts[index:]]), 0o755)
                break
            if not stat.S_ISDIR(mode):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
                raise OSError(20, f"mount at {place}: {reached}/{part} is {what} on this node")
            reached += f"/{part}"
            if index < len(parts) - 1 and not mode & stat.S_IXOTH:
                # Others may not enter it, and what is in it stays hidden.
                mount("tmpfs", reached, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def _mirror(folder: str) -> str:
    """Covers a directory with an empty one that has the same entries, by mounts. For the root directory the copy is at
    /tmp, until it becomes the root. Returns where the copy is.
    """
    names = os.listdir(folder)
    if len(names) > MIRRORED_ENTRIES_MAX:
        raise OSError(28, f"mount below {folder}: the mount point is missing, and {folder} has {len(names)} entries")
    held = {name: os.open(f"{folder}/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) for name in names}
    modes = {name: os.fstat(fd).st_mode for name, fd in held.items()}
    links = {name: os.readlink(f"{folder}/{name}") for name, mode in modes.items() if stat.S_ISLNK(mode)}
    target = folder if folder != "/" else "/tmp"
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    mount(None, target, None, MS_UNBINDABLE)  # so that the copy of the root does not contain itself
    for name, fd in held.items():
        made = f"{target}/{name}"
        if name in links:
            os.symlink(links[name], made)
        else:
            if stat.S_ISDIR(modes[name]):
                os.mkdir(made, 0o755)
            else:
                os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            mount(f"/proc/self/fd/{fd}", made, None, MS_BIND | MS_REC)
        os.close(fd)
    return target


def _change_root(target: str) -> None:
    """pivot_root, so that commands that enter this namespace later have the same root."""
    number = PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, "mount below /: pivot_root is not known for this machine")
    os.chdir(target)
    check_call(libc.syscall(ctypes.c_long(number), b".", b"."), "mount below /: pivot_root")
    check_call(libc.umount2(b".", MNT_DETACH), "mount below /: detach the former root")
    os.chdir("/")


# --- measured volumes ----------------------------------------------------------------------------------------------


class VolumeMeasurement:
    """Measures, one after the other, the volumes whose size no file system limits."""

    def __init__(self, launch: Launch) -> None:
        self._volumes = [volume for volume in launch.volumes if volume["kind"] == "dir" and volume["size"]]
        self._index = 0
        self._pid = 0
        self._began = 0.0
        self._at = boottime() + MEASURE_EVERY_S
        self._stopped = False
        self.finding = ""

    def next_at(self) -> float | None:
        return None if not self._volumes or self._pid or self._stopped else self._at

    def advance(self) -> None:
        at = self.next_at()
        if at is not None and boottime() >= at:
            volume = self._volumes[self._index % len(self._volumes)]
            self._began = boottime()
            self._pid = fork_measurement(str(volume["stage"]), int(str(volume["size"])))

    def ended(self, pid: int, status: int) -> bool:
        """Whether this was the end of a measurement that found a volume larger than its limit."""
        if pid != self._pid:
            return False
        self._pid = 0
        volume = self._volumes[self._index % len(self._volumes)]
        self._index += 1
        took_s = boottime() - self._began
        self._at = boottime() + max(MEASURE_EVERY_S / len(self._volumes), took_s / MEASURE_SHARE)
        if status == 0:
            return False
        self._stopped = True
        self.finding = f"volume {volume['name']}: the task wrote more than its sizeLimit of {volume['limit']}"
        return True
