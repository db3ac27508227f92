"""Bringing a platform up: prepare its directory, start the supervisor, apply what belongs to it, wait until it serves.

What always holds: a directory that holds a platform is continued, never rebuilt; in the foreground, the end of this
process, whatever ends it, ends the platform.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.http import Api
from holdfast.cli.output import note, print_json
from holdfast.cli.platform.credentials import Credentials
from holdfast.cli.platform.enrol import clear, enrol
from holdfast.cli.platform.kubeconfig import write_kubeconfig
from holdfast.cli.platform.layout import MAX_REGIONS, Layout, Platform, design, write_whole
from holdfast.cli.platform.processes import Identity, alive, send, wait_gone
from holdfast.cli.platform.progress import Display, display
from holdfast.cli.platform.samples import apply_all, region_manifests, sample_manifests
from holdfast.cli.platform.supervisor import python_command, supervisor_of
from holdfast.cli.platform.survey import Survey, Surveyor, connect
from holdfast.model.region import HealthState
from holdfast.model.validation import check_dns_label

LOOK_EVERY_S = 0.5
SUPERVISOR_START_S = 10.0
SETTLED_FOR_S = 10.0
STOP_MOST_S = 90.0


class Wanted(msgspec.Struct, frozen=True):
    """What the command line asked for."""

    regions: tuple[str, ...]
    agents: int
    port_base: int
    samples: bool
    etcd_cells: tuple[str, ...] = ()
    provider: bool = True


def parse_regions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    causes = [cause.message for name in names for cause in check_dns_label(name, name)]
    if len(set(names)) != len(names):
        causes.append("each region once")
    if "global" in names:
        causes.append("'global' names the global cell")
    if not 1 <= len(names) <= MAX_REGIONS:
        causes.append(f"between 1 and {MAX_REGIONS} regions")
    if causes:
        raise Stop(
            f"--regions {text!r} cannot be used",
            why="; ".join(causes),
            next_step="for example --regions us-east,eu-west",
            code=Exit.USAGE,
        )
    return names


def bring_up(
    state: str, wanted: Wanted, *, given: set[str], detach: bool, timeout_s: float, quiet: bool, as_json: bool
) -> int:
    layout = Layout(state)
    running = supervisor_of(layout)
    platform = prepare(layout, wanted, given=given, running=running is not None)
    if running is not None and not detach:
        raise Stop(
            f"the platform in {layout.root} is already running (supervisor {running.pid})",
            why="in the foreground, ending this command would end it",
            next_step="holdfast status shows it; holdfast up --detach waits for it; holdfast down stops it",
            code=Exit.CONFLICT,
        )
    with until_stopped(layout, platform, running, detach=detach, quiet=quiet) as supervisor:
        shown = display(platform, quiet=quiet)
        with shown:
            if running is not None:
                shown.say(f"already running (supervisor {running.pid})")
            survey, served = wait_until_serving(layout, platform, supervisor, shown, timeout_s)
        report(layout, platform, survey, served=served, detach=detach, as_json=as_json)
        if not detach:
            follow(layout, supervisor, quiet=quiet)
            return Exit.OK if served else Exit.TIMED_OUT
    return Exit.OK if served else Exit.TIMED_OUT


def prepare(layout: Layout, wanted: Wanted, *, given: set[str], running: bool) -> Platform:
    """The platform of this directory: the recorded one, or a new one as asked for."""
    if layout.platform.exists():
        platform = layout.load()
        _check_same(layout, platform, wanted, given)
    else:
        platform = design(
            wanted.regions,
            agents_per_region=wanted.agents,
            port_base=wanted.port_base,
            samples=wanted.samples,
            etcd_cells=wanted.etcd_cells,
            provider=wanted.provider,
        )
        _check_ports_free(platform)
    layout.prepare()
    Credentials(layout).prepare(platform)
    if not layout.platform.exists():
        layout.save(platform)
    write_kubeconfig(layout, platform, layout.kubeconfig)
    return platform


def _check_same(layout: Layout, platform: Platform, wanted: Wanted, given: set[str]) -> None:
    """Options left out mean "as before"; options that differ from what is there are refused, not ignored."""
    before: dict[str, tuple[object, object]] = {
        "regions": (tuple(r.name for r in platform.regions), wanted.regions),
        "agents": (platform.agents_per_region, wanted.agents),
        "port_base": (platform.port_base, wanted.port_base),
        "store": (platform.etcd_cells, wanted.etcd_cells),
        "no_provider": (not platform.provider, not wanted.provider),
    }
    different = [name for name in sorted(given & before.keys()) if before[name][0] != before[name][1]]
    if different:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in different)
        raise Stop(
            f"the platform in {layout.root} was made with another {flags}",
            why="; ".join(f"{name} is {before[name][0]}, asked for {before[name][1]}" for name in different),
            next_step="leave the option out to continue it, or name another --state",
            code=Exit.CONFLICT,
        )


def _check_ports_free(platform: Platform) -> None:
    for name, url in platform.cells:
        port = int(url.rpartition(":")[2])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Stop(
                    f"port {port}, for the {name} cell, is taken",
                    why=error.strerror or str(error),
                    next_step="choose another --port-base (and --state, to run beside another platform)",
                    code=Exit.CONFLICT,
                ) from None


@contextlib.contextmanager
def until_stopped(
    layout: Layout, platform: Platform, running: Identity | None, *, detach: bool, quiet: bool
) -> Iterator[Identity]:
    """The supervisor while the block runs; in the foreground the platform is stopped with it, however it ends."""
    supervisor = running or start_supervisor(layout, detach=detach)
    if not detach:
        signal.signal(signal.SIGTERM, _as_interrupt)
        signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        yield supervisor
    except KeyboardInterrupt:
        if detach:
            note("interrupted; the platform keeps running: holdfast down stops it")
        raise
    finally:
        if not detach:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not quiet:
                note("stopping")
            send(supervisor, signal.SIGTERM)
            wait_gone(supervisor, STOP_MOST_S)
            if not quiet:
                note("stopped; holdfast up continues from here")


def start_supervisor(layout: Layout, *, detach: bool) -> Identity:
    """The supervisor in a session of its own: Ctrl-C reaches only this command, which passes it on in order."""
    words = ["supervise", "--state", str(layout.root)]
    if not detach:
        words += ["--with-parent", str(os.getpid())]
    with layout.log("supervisor").open("ab") as log:
        started = subprocess.Popen(
            python_command(*words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            cwd=layout.root,
        )
    deadline = time.monotonic() + SUPERVISOR_START_S
    while time.monotonic() < deadline:
        found = supervisor_of(layout)
        if found is not None and found.pid == started.pid:
            return found
        if started.poll() is not None:
            break
        time.sleep(0.05)
    raise Stop(
        "the supervisor did not start",
        why=_last_line(layout),
        next_step=f"look at {layout.log('supervisor')}",
    )


def _last_line(layout: Layout) -> str:
    try:
        lines = layout.log("supervisor").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def wait_until_serving(
    layout: Layout, platform: Platform, supervisor: Identity, shown: Display, timeout_s: float
) -> tuple[Survey, bool]:
    """Looks until everything serves or time runs out; applies regions and samples on the way, when there is a point."""
    deadline = time.monotonic() + timeout_s
    surveyor = Surveyor(layout, platform)
    regions = samples = enrolled = False
    # The user's own work may be broken, and was before: a platform that is continued is up all the same.
    continued, settled_at = layout.applied.exists(), 0.0
    try:
        while True:
            survey = surveyor.look()
            shown.show(survey)
            if not enrolled:
                enrolled = applied(lambda: enrol(layout, platform))
            if not regions and survey.cells[0].ready:
                regions = applied(lambda: apply_all(surveyor.api("global"), region_manifests(platform)))
            elif regions and not samples and can_place(platform, survey):
                samples = applied(lambda: apply_samples(layout, platform, surveyor.api("global"), shown.say))
            elif samples and is_serving(platform, survey):
                clear(layout, platform)
                return survey, True
            if not (samples and continued and is_serving(platform, survey, but_stuck=True)):
                settled_at = 0.0
            elif not settled_at:
                settled_at = time.monotonic()
            elif time.monotonic() - settled_at >= SETTLED_FOR_S:
                clear(layout, platform)
                return survey, True
            if not alive(supervisor):
                raise Stop(
                    "the supervisor ended", why=_last_line(layout), next_step=f"look at {layout.log('supervisor')}"
                )
            if time.monotonic() >= deadline:
                return survey, False
            time.sleep(LOOK_EVERY_S)
    finally:
        surveyor.close()


def applied(act: Callable[[], None]) -> bool:
    """Whether it was done; an API that is not ready after all is asked again with the next look."""
    try:
        act()
    except Stop as stop:
        if stop.code is Exit.UNREACHABLE or getattr(stop, "status", 0) in (409, 429, 503, 504):
            return False
        raise
    return True


def can_place(platform: Platform, survey: Survey) -> bool:
    """Every region is known to be healthy and to have its nodes: what is applied earlier gathers in those that are."""
    wanted = {region.name: len(region.agents) for region in platform.regions}
    return all(
        cell.health == HealthState.HEALTHY and cell.live_nodes >= wanted[cell.name]
        for cell in survey.cells
        if cell.name in wanted
    )


def apply_samples(layout: Layout, platform: Platform, api: Api, say: Callable[[str], None]) -> None:
    """Once in a platform's life, so that what the user changed since stays changed."""
    if not platform.samples or layout.applied.exists():
        return
    manifests, remarks = sample_manifests(platform)
    apply_all(api, manifests)
    for remark in remarks:
        say(remark)
    write_whole(layout.applied, b"")


def is_serving(platform: Platform, survey: Survey, *, but_stuck: bool = False) -> bool:
    """Whether all is there; `but_stuck` leaves out what says itself why it cannot serve."""
    nodes_wanted = sum(len(region.agents) for region in platform.regions)
    nodes = sum(node.schedulable for node in survey.nodes)
    return (
        survey.complete
        and nodes >= nodes_wanted
        and all(workload.done or (but_stuck and workload.stuck) for workload in survey.workloads)
    )


def report(layout: Layout, platform: Platform, survey: Survey, *, served: bool, detach: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "serving": served,
                "url": platform.global_url,
                "kubeconfig": str(layout.kubeconfig),
                "state": str(layout.root),
                "survey": msgspec.to_builtins(survey),
            }
        )
        return
    kubeconfig, state = _short(str(layout.kubeconfig)), _short(str(layout.root))
    flag = "" if state == ".holdfast" else f" --state {state}"
    command = own_command()
    ending = f"\n{command} down{flag} stops it." if detach else "\nCtrl-C stops it."
    if not served:
        note("\nNot everything serves yet:")
        for line in missing(layout, survey):
            note(f"  {line}")
        note(f"  next: {command} status{flag}")
        note(ending)
        return
    note("\nHoldfast is up." + (" This does not serve:" if (lines := unserved(survey)) else ""))
    for line in lines:
        note(f"  {line}")
    note(f"  API         {platform.global_url}")
    note(f"  kubeconfig  {kubeconfig}")
    note("\nTry:")
    note(f"  kubectl --kubeconfig {kubeconfig} get workloads -A")
    note(f"  {_curl(layout, platform)}")
    note(f"  {command} status{flag}")
    note(ending)


def own_command() -> str:
    """This very command as the user can type it: by its path where the shell would not find it, or find another."""
    beside = Path(sys.executable).with_name("holdfast")
    found = shutil.which("holdfast")
    if not beside.exists() or (found is not None and os.path.samefile(found, beside)):
        return "holdfast"
    return _short(str(beside))


def unserved(survey: Survey) -> list[str]:
    return [
        f"{w.tenant}/{w.name}: {' '.join(f'{s}:{n}' for s, n in w.stages.items()) or 'no replicas yet'} {w.reason}"
        for w in survey.workloads
        if not w.done
    ]


def missing(layout: Layout, survey: Survey) -> list[str]:
    """What does not serve, and the reason there is."""
    told = unserved(survey)
    told += [f"node {n.region}/{n.name}: {n.reason}" for n in survey.nodes if not n.schedulable]
    told += [
        f"the {cell.name} cell: {cell.message}; see {layout.log('cell-' + cell.name)}"
        for cell in survey.cells
        if not cell.ready
    ]
    told += [
        f"{p.name}: {p.last_exit}, restarted {p.restarts} times; see {p.log}" for p in survey.processes if p.restarts
    ]
    return told


def _curl(layout: Layout, platform: Platform) -> str:
    """A request to a replica of risk-api that serves right now; the list of endpoints when there is none."""
    try:
        told = connect(layout, platform, "global").get("/endpoints/payments/risk-api")
        for address in told["workloads"].get("risk-api", []):
            if address.get("ports"):
                return f"curl http://{address['address']}:{next(iter(address['ports'].values()))}/"
    except Stop:
        pass
    return "holdfast endpoints payments/risk-api"


def _short(path: str) -> str:
    """Relative where that is shorter to type."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") and len(relative) < len(path) else path


def follow(layout: Layout, supervisor: Identity, *, quiet: bool) -> None:
    """Repeats what the supervisor says until it ends or this command is interrupted, its ordinary end."""
    with contextlib.suppress(KeyboardInterrupt), layout.log("supervisor").open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        while alive(supervisor):
            line = log.readline()
            if not line:
                wait_gone(supervisor, 0.25)
            elif not quiet:
                note(line.rstrip())


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt
