"""The local etcd cluster of `holdfast up --store etcd`: three members, supervised like the platform's other processes.

It is for one machine only. A production cluster has its members in three failure domains (docs/etcd.md).
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.platform.layout import Layout, Platform
from holdfast.cli.platform.supervisor import Program

MEMBERS = 3
PORTS_FROM = 40
RANK = -1
STOP_S = 5.0


def parse_store(text: str, cells: tuple[str, ...]) -> tuple[str, ...]:
    """The cells that `--store` assigns to etcd: all, none, or the named ones (`global=etcd,us-east=sqlite`)."""
    if text in ("sqlite", "etcd"):
        return cells if text == "etcd" else ()
    chosen: list[str] = []
    for part in text.split(","):
        cell, _, store = part.strip().partition("=")
        if cell not in cells or store not in ("sqlite", "etcd"):
            raise Stop(
                f"--store {text}: invalid (expected sqlite, etcd or CELL=STORE with a cell of {', '.join(cells)}; "
                f"found {part.strip()})",
                next_step="--store etcd, or --store global=etcd",
                code=Exit.USAGE,
            )
        if store == "etcd":
            chosen.append(cell)
    return tuple(cell for cell in cells if cell in chosen)


def endpoints(platform: Platform) -> tuple[str, ...]:
    return tuple(f"http://127.0.0.1:{platform.port_base + PORTS_FROM + n}" for n in range(MEMBERS))


def binary() -> str:
    """Path of the etcd program: from PATH, or from the .tools directory that `make tools` fills."""
    beside = Path(__file__).parents[4] / ".tools" / "bin"
    found = shutil.which("etcd") or shutil.which("etcd", path=str(beside))
    if found is None:
        raise Stop(
            "--store etcd: the program etcd is not installed",
            next_step="apt-get install etcd-server, or make tools, or use --store sqlite",
            code=Exit.USAGE,
        )
    return found


def members(platform: Platform, layout: Layout) -> list[Program]:
    if not platform.etcd_cells:
        return []
    program = binary()
    peers = [f"http://127.0.0.1:{platform.port_base + PORTS_FROM + MEMBERS + n}" for n in range(MEMBERS)]
    cluster = ",".join(f"etcd-{n}={peer}" for n, peer in enumerate(peers))
    made = []
    for n, client in enumerate(endpoints(platform)):
        argv = (
            program,
            "--name", f"etcd-{n}",
            "--data-dir", str(layout.root / "etcd" / f"etcd-{n}"),
            "--listen-client-urls", client,
            "--advertise-client-urls", client,
            "--listen-peer-urls", peers[n],
            "--initial-advertise-peer-urls", peers[n],
            "--initial-cluster", cluster,
            "--initial-cluster-token", str(layout.root),
            "--quota-backend-bytes", str(4 * 1024**3),
            "--logger", "zap",
            "--log-level", "warn",
        )  # fmt: skip
        stop = ((int(signal.SIGTERM), STOP_S),)
        made.append(Program(name=f"etcd-{n}", argv=argv, rank=RANK, stop_signals=stop))
    return made
