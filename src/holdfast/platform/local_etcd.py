"""The local etcd cluster of `holdfast up --store etcd`: three members, supervised like the platform's other processes.

It is for one machine only. A production cluster has its members in three failure domains (docs/etcd.md).
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout, Platform
from holdfast.platform.supervisor import Program

ETCD_MEMBERS = 3
ETCD_PORT_OFFSET = 40
ETCD_START_ORDER = -1
STOP_S = 5.0


def parse_store(text: str, cells: tuple[str, ...]) -> tuple[str, ...]:
    """The cells that `--store` assigns to etcd: all, none, or the named ones (`global=etcd,us-east=sqlite`)."""
    if text in ("sqlite", "etcd"):
        return cells if text == "etcd" else ()
    chosen: list[str] = []
    for part in text.split(","):
        cell, _, store = part.strip().partition("=")
        if cell not in cells or store not in ("sqlite", "etcd"):
            raise CommandError(
                f"--store {text}: invalid (expected sqlite, etcd or CELL=STORE with a cell of {', '.join(cells)}; "
                f"found {part.strip()})",
                next_step="--store etcd, or --store global=etcd",
                code=ExitCode.USAGE,
            )
        if store == "etcd":
            chosen.append(cell)
    return tuple(cell for cell in cells if cell in chosen)


def etcd_endpoints(platform: Platform) -> tuple[str, ...]:
    return tuple(f"http://127.0.0.1:{platform.port_base + ETCD_PORT_OFFSET + n}" for n in range(ETCD_MEMBERS))


def etcd_binary() -> str:
    """Path of the etcd program: from PATH, or from the .tools directory that `make tools` fills."""
    beside = Path(__file__).parents[3] / ".tools" / "bin"
    found = shutil.which("etcd") or shutil.which("etcd", path=str(beside))
    if found is None:
        raise CommandError(
            "etcd: the program is not installed",
            next_step="apt-get install etcd-server, or make tools; or use SQLite, or an etcd that runs elsewhere",
            code=ExitCode.USAGE,
        )
    return found


def etcd_programs(platform: Platform, layout: Layout) -> list[Program]:
    if not platform.etcd_cells:
        return []
    program = etcd_binary()
    peers = [
        f"http://127.0.0.1:{platform.port_base + ETCD_PORT_OFFSET + ETCD_MEMBERS + n}" for n in range(ETCD_MEMBERS)
    ]
    cluster = ",".join(f"etcd-{n}={peer}" for n, peer in enumerate(peers))
    made = []
    for n, client in enumerate(etcd_endpoints(platform)):
        argv = (
            program,
            "--name",
            f"etcd-{n}",
            "--data-dir",
            str(layout.root / "etcd" / f"etcd-{n}"),
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peers[n],
            "--initial-advertise-peer-urls",
            peers[n],
            "--initial-cluster",
            cluster,
            "--initial-cluster-token",
            str(layout.root),
            "--quota-backend-bytes",
            str(4 * 1024**3),
            "--logger",
            "zap",
            "--log-level",
            "warn",
        )
        stop = ((int(signal.SIGTERM), STOP_S),)
        made.append(Program(name=f"etcd-{n}", argv=argv, start_order=ETCD_START_ORDER, stop_signals=stop))
    return made
