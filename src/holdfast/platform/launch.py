"""`holdfast up`: prepares the directory, starts the supervisor, applies regions and samples, waits until all serves.

- An existing platform is continued, never rebuilt.
- In the foreground, the platform stops when this process ends, for whatever reason.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.client.refusal_text import cell_label
from holdfast.client.sync_api import CellApi
from holdfast.dns.names import DEFAULT_ZONE
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.identity.secret_keys import KEYS_FILE, create_keys
from holdfast.model.region import HealthState
from holdfast.model.validation import check_dns_label
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.console_link import console_link, page_url
from holdfast.platform.credentials import Credentials
from holdfast.platform.join_tokens import issue_agent_tokens, remove_used_tokens
from holdfast.platform.kubeconfig import write_kubeconfig
from holdfast.platform.layout import PORT_SPACING, REGIONS_MAX, Layout, Platform, design_platform, write_atomically
from holdfast.platform.output import print_json, print_note
from holdfast.platform.platform_status import PlatformStatus, PlatformStatusReader
from holdfast.platform.port_overlap import overlap_warnings
from holdfast.platform.processes import SUPERVISOR_STOP_TIMEOUT_S, ProcessIdentity, is_alive, send_signal, wait_exited
from holdfast.platform.programs import write_proxy_settings
from holdfast.platform.progress import Display, make_display
from holdfast.platform.sample_manifests import (
    Manifest,
    apply_manifests,
    example_manifests,
    front_workload,
    region_manifests,
    sample_manifests,
)
from holdfast.platform.supervisor import python_command, running_supervisor

POLL_EVERY_S = 0.5
SUPERVISOR_START_S = 10.0
STABLE_FOR_S = 10.0


class PlatformSpec(msgspec.Struct, frozen=True):
    """The platform that the command line requests."""

    regions: tuple[str, ...]
    agents: int
    port_base: int
    samples: bool
    etcd_cells: tuple[str, ...] = ()
    provider: bool = True
    example: str = ""
    """Applied instead of the samples to a new platform, beside its objects to an existing one."""
    proxies: tuple[str, ...] = ()
    """Regions that get an entry proxy, in addition to those that have one."""


def parse_regions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    causes = [cause.message for name in names for cause in check_dns_label(name, name)]
    if len(set(names)) != len(names):
        causes.append("a region is named twice")
    if "global" in names:
        causes.append("`global` is reserved for the global cell")
    if not 1 <= len(names) <= REGIONS_MAX:
        causes.append(f"expected 1 to {REGIONS_MAX} regions, found {len(names)}")
    if causes:
        text = f"--regions {text}: invalid ({'; '.join(causes)})"
        raise CommandError(text, next_step="--regions us-east,eu-west", code=ExitCode.USAGE)
    return names


def parse_proxies(text: str, regions: tuple[str, ...]) -> tuple[str, ...]:
    """The regions of `--proxy`. HAProxy must be there."""
    names = regions if text == "all" else tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in regions]
    if unknown:
        raise CommandError(
            f"--proxy {text}: no such region: {', '.join(unknown)}",
            next_step=f"--proxy all, or names of {', '.join(regions)}",
            code=ExitCode.USAGE,
        )
    if names and shutil.which("haproxy") is None:
        raise CommandError("--proxy: haproxy: program not found", next_step="install HAProxy 2.4 or later")
    return names


def bring_up(
    state: str, spec: PlatformSpec, *, explicit: set[str], detach: bool, timeout_s: float, quiet: bool, as_json: bool
) -> int:
    layout = Layout(state)
    running = running_supervisor(layout)
    platform = prepare(layout, spec, explicit=explicit, running=running is not None)
    if running is not None and not detach:
        raise CommandError(
            f"platform {layout.root}: already running (supervisor {running.pid})",
            next_step="holdfast up --detach to wait for it, or holdfast down",
            code=ExitCode.CONFLICT,
        )
    with supervised(layout, platform, running, detach=detach, quiet=quiet) as supervisor:
        shown = make_display(platform, quiet=quiet)
        with shown:
            if running is not None:
                shown.say(f"already running (supervisor {running.pid})")
            status, served = wait_until_serving(layout, platform, supervisor, shown, timeout_s)
        print_report(layout, platform, status, served=served, detach=detach, as_json=as_json)
        if not detach:
            follow_supervisor_log(layout, supervisor, quiet=quiet)
            return ExitCode.OK if served else ExitCode.TIMED_OUT
    return ExitCode.OK if served else ExitCode.TIMED_OUT


def prepare(layout: Layout, spec: PlatformSpec, *, explicit: set[str], running: bool) -> Platform:
    """The platform recorded in this directory, or a new one as requested."""
    if layout.platform.exists():
        platform = layout.load()
        _check_same(layout, platform, spec, explicit)
        proxies = tuple(dict.fromkeys((*platform.proxies, *spec.proxies)))
        if running and proxies != platform.proxies:
            raise CommandError(
                f"platform {layout.root}: entry proxies are added when it starts, and it is running",
                next_step="holdfast down, then holdfast up with --proxy",
                code=ExitCode.CONFLICT,
            )
        changed = msgspec.structs.replace(platform, example=spec.example or platform.example, proxies=proxies)
        if changed != platform:
            platform = changed
            layout.save(platform)
    else:
        platform = design_platform(
            spec.regions,
            agents_per_region=spec.agents,
            port_base=spec.port_base,
            samples=spec.samples and not spec.example,
            etcd_cells=spec.etcd_cells,
            provider=spec.provider,
            example=spec.example,
            proxies=spec.proxies,
        )
        _check_ports_free(platform)
        for warning in overlap_warnings(layout, platform):
            print_note(warning)
    layout.prepare()
    Credentials(layout).prepare(platform)
    if not layout.platform.exists():
        for name, _ in platform.cells:
            layout.cell(name).mkdir(mode=0o700, parents=True, exist_ok=True)
            record = IdentityFile(layout.cell(name))
            if record.read() is None:
                initialize(record, name)
            create_keys(layout.cell(name) / KEYS_FILE)
        layout.save(platform)
    write_kubeconfig(layout, platform, layout.kubeconfig)
    write_proxy_settings(platform, layout)
    return platform


def _check_same(layout: Layout, platform: Platform, spec: PlatformSpec, explicit: set[str]) -> None:
    """Raises if an option differs from the recorded platform. Options that are not given keep their recorded value."""
    before: dict[str, tuple[object, object]] = {
        "regions": (",".join(r.name for r in platform.regions), ",".join(spec.regions)),
        "agents": (platform.agents_per_region, spec.agents),
        "port_base": (platform.port_base, spec.port_base),
        "store": (_store_text(platform.etcd_cells), _store_text(spec.etcd_cells)),
        "no_provider": (_yes_no(not platform.provider), _yes_no(not spec.provider)),
    }
    different = [name for name in sorted(explicit & before.keys()) if before[name][0] != before[name][1]]
    if different:
        found = "; ".join(
            f"--{name.replace('_', '-')}: expected {before[name][0]}, found {before[name][1]}" for name in different
        )
        raise CommandError(
            f"platform {layout.root}: options cannot change after creation ({found})",
            next_step="omit these options, or add --state DIR to create a second platform",
            code=ExitCode.CONFLICT,
        )


def _store_text(etcd_cells: tuple[str, ...]) -> str:
    return ",".join(f"{cell}=etcd" for cell in etcd_cells) or "sqlite"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _check_ports_free(platform: Platform) -> None:
    ports = {cell_label(name): int(url.rpartition(":")[2]) for name, url in platform.cells}
    proxies = {f"entry proxy of {region}": platform.proxy_port(region) for region in platform.proxies}
    for name, port in {**ports, **proxies, "name server": platform.dns_port}.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise CommandError(
                    f"{name}: port {port} is in use by another process",
                    next_step=f"holdfast up --port-base {platform.port_base + PORT_SPACING} --state .holdfast-2",
                    code=ExitCode.CONFLICT,
                ) from None


@contextlib.contextmanager
def supervised(
    layout: Layout, platform: Platform, running: ProcessIdentity | None, *, detach: bool, quiet: bool
) -> Iterator[ProcessIdentity]:
    """Yields the running supervisor. In the foreground the platform is stopped at the end of the block."""
    supervisor = running or start_supervisor(layout, detach=detach)
    if not detach:
        signal.signal(signal.SIGTERM, _as_interrupt)
        signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        yield supervisor
    except KeyboardInterrupt:
        if detach:
            print_note("interrupted; the platform keeps running; next: holdfast down")
        raise
    finally:
        if not detach:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not quiet:
                print_note("stopping")
            send_signal(supervisor, signal.SIGTERM)
            wait_exited(supervisor, SUPERVISOR_STOP_TIMEOUT_S)
            if not quiet:
                print_note("stopped; next: holdfast up continues this platform")


def start_supervisor(layout: Layout, *, detach: bool) -> ProcessIdentity:
    """Starts the supervisor in its own session, so that Ctrl-C reaches only this command."""
    arguments = ["supervise", "--state", str(layout.root)]
    if not detach:
        arguments += ["--with-parent", str(os.getpid())]
    with layout.log("supervisor").open("ab") as log:
        started = subprocess.Popen(
            python_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            cwd=layout.root,
        )
    deadline = time.monotonic() + SUPERVISOR_START_S
    while time.monotonic() < deadline:
        found = running_supervisor(layout)
        if found is not None and found.pid == started.pid:
            return found
        if started.poll() is not None:
            break
        time.sleep(0.05)
    text = f"supervisor: not started within {SUPERVISOR_START_S:g} s ({_last_line(layout)})"
    raise CommandError(text, next_step=f"read {layout.log('supervisor')}")


def _last_line(layout: Layout) -> str:
    try:
        lines = layout.log("supervisor").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def wait_until_serving(
    layout: Layout, platform: Platform, supervisor: ProcessIdentity, shown: Display, timeout_s: float
) -> tuple[PlatformStatus, bool]:
    """Polls until everything serves or the time is over. Applies regions and samples as soon as cells are ready."""
    deadline = time.monotonic() + timeout_s
    reader = PlatformStatusReader(layout, platform)
    regions = samples = enrolled = False
    # In a continued platform the user's workloads may be broken. That does not keep `up` from finishing.
    continued, settled_at = layout.applied.exists(), 0.0
    try:
        while True:
            status = reader.read()
            shown.show(status)
            if not enrolled:
                enrolled = try_apply(lambda: issue_agent_tokens(layout, platform))
            if not regions and status.cells[0].ready:
                regions = try_apply(lambda: apply_manifests(reader.api("global"), region_manifests(platform)))
            elif regions and not samples and regions_ready(platform, status):
                samples = try_apply(lambda: apply_samples(layout, platform, reader.api("global"), shown.say))
            elif samples and is_serving(platform, status):
                remove_used_tokens(layout, platform)
                return status, True
            if not (samples and continued and is_serving(platform, status, but_stuck=True)):
                settled_at = 0.0
            elif not settled_at:
                settled_at = time.monotonic()
            elif time.monotonic() - settled_at >= STABLE_FOR_S:
                remove_used_tokens(layout, platform)
                return status, True
            if not is_alive(supervisor):
                text = f"supervisor: exited ({_last_line(layout)})"
                raise CommandError(text, next_step=f"read {layout.log('supervisor')}")
            if time.monotonic() >= deadline:
                return status, False
            time.sleep(POLL_EVERY_S)
    finally:
        reader.close()


def try_apply(act: Callable[[], None]) -> bool:
    """Runs `act` and returns True; returns False if the API is not ready, so that the caller retries."""
    try:
        act()
    except CommandError as stop:
        if stop.code is ExitCode.UNREACHABLE or getattr(stop, "status", 0) in (409, 429, 503, 504):
            return False
        raise
    return True


def regions_ready(platform: Platform, status: PlatformStatus) -> bool:
    """Whether all regions are healthy and have all their nodes. Workloads applied earlier would be assigned only to the
    regions that are ready."""
    spec = {region.name: len(region.agents) for region in platform.regions}
    return all(
        cell.health == HealthState.HEALTHY and cell.live_nodes >= spec[cell.name]
        for cell in status.cells
        if cell.name in spec
    )


def apply_samples(layout: Layout, platform: Platform, api: CellApi, say: Callable[[str], None]) -> None:
    """Applies the samples and the example once per platform, so that later changes by the user are kept."""
    due: list[tuple[Path, tuple[list[Manifest], list[str]]]] = []
    if platform.samples and not layout.applied.exists():
        due.append((layout.applied, sample_manifests(platform)))
    if platform.example and not layout.example_applied(platform.example).exists():
        due.append((layout.example_applied(platform.example), example_manifests(platform, platform.example)))
    for applied, (manifests, remarks) in due:
        apply_manifests(api, manifests)
        for remark in remarks:
            say(remark)
        write_atomically(applied, b"")
    # Also without samples: from now on a workload that cannot serve is the user's, and `up` does not wait for it.
    write_atomically(layout.applied, b"")


def is_serving(platform: Platform, status: PlatformStatus, *, but_stuck: bool = False) -> bool:
    """Whether all nodes and workloads are ready. With `but_stuck`, workloads that report a reason are ignored."""
    nodes_wanted = sum(len(region.agents) for region in platform.regions)
    nodes = sum(node.schedulable for node in status.nodes)
    return (
        status.complete
        and nodes >= nodes_wanted
        and all(workload.done or (but_stuck and workload.stuck) for workload in status.workloads)
    )


def print_report(
    layout: Layout, platform: Platform, status: PlatformStatus, *, served: bool, detach: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "serving": served,
                "url": platform.global_url,
                "console": _console_link(layout, platform),
                "kubeconfig": str(layout.kubeconfig),
                "dns": platform.dns,
                "proxies": {region: f"127.0.0.1:{platform.proxy_port(region)}" for region in platform.proxies},
                "state": str(layout.root),
                "survey": msgspec.to_builtins(status),
            }
        )
        return
    kubeconfig, state = _short(str(layout.kubeconfig)), _short(str(layout.root))
    flag = "" if state == ".holdfast" else f" --state {state}"
    command = command_path()
    ending = f"\n{command} down{flag} stops the platform." if detach else "\nCtrl-C stops the platform."
    if not served:
        print_note("\nNot everything serves yet:")
        for line in not_ready_lines(layout, status):
            print_note(f"  {line}")
        print_note(f"  next: {command} status{flag}")
        print_note(ending)
        return
    print_note("\nHoldfast is up." + (" Not serving:" if (lines := not_serving_lines(status)) else ""))
    for line in lines:
        print_note(f"  {line}")
    print_note(f"  Console     {_console_link(layout, platform)}")
    print_note(f"  Docs        {page_url(platform.global_url, '/docs')}")
    print_note(f"  API         {platform.global_url}")
    print_note(f"  kubeconfig  {kubeconfig}")
    print_note(f"  DNS         {platform.dns} (zone {DEFAULT_ZONE})")
    for region in platform.proxies:
        print_note(f"  Proxy       http://127.0.0.1:{platform.proxy_port(region)} ({region})")
    print_note("\nTry:")
    print_note(f"  kubectl --kubeconfig {kubeconfig} get workloads -A")
    if front := front_workload(platform):
        print_note(f"  {_curl(layout, platform, front)}")
    print_note(f"  {command} status{flag}")
    if flag:
        where = " ".join(f"{name}={shlex.quote(str(path))}" for name, path in exported_paths(layout).items())
        print_note(f"  export {where}")
    print_note(ending)


def exported_paths(layout: Layout) -> dict[str, Path]:
    """The variables by which kubectl and `holdfast` find a platform that is not in the default place."""
    return {"KUBECONFIG": layout.kubeconfig.absolute(), "HOLDFAST_STATE": layout.root.absolute()}


def _console_link(layout: Layout, platform: Platform) -> str:
    """A sign-in link; without the API, how to get one."""
    try:
        return console_link(connect_cell(layout, platform, "global"), platform.global_url)
    except CommandError:
        return f"{command_path()} console"


def command_path() -> str:
    """The command as the user can type it: its path if the shell would not find this installation."""
    beside = Path(sys.executable).with_name("holdfast")
    found = shutil.which("holdfast")
    if not beside.exists() or (found is not None and os.path.samefile(found, beside)):
        return "holdfast"
    return _short(str(beside))


def not_serving_lines(status: PlatformStatus) -> list[str]:
    return [
        f"{w.tenant}/{w.name}: {' '.join(f'{s}:{n}' for s, n in w.stages.items()) or 'no replicas yet'} {w.reason}"
        for w in status.workloads
        if not w.done
    ]


def not_ready_lines(layout: Layout, status: PlatformStatus) -> list[str]:
    """Workloads, nodes, cells and processes that are not ready, with reasons."""
    lines = not_serving_lines(status)
    lines += [f"node {n.region}/{n.name}: {n.reason}" for n in status.nodes if not n.schedulable]
    lines += [
        f"{cell_label(cell.name)}: {cell.message}; see {layout.log('cell-' + cell.name)}"
        for cell in status.cells
        if not cell.ready
    ]
    lines += [
        f"{p.name}: {p.last_exit}, restarted {p.restarts} times; see {p.log}" for p in status.processes if p.restarts
    ]
    return lines


def _curl(layout: Layout, platform: Platform, front: str) -> str:
    """A curl command to a serving replica of the workload, or the command that lists its endpoints."""
    try:
        lines = connect_cell(layout, platform, "global").get(f"/endpoints/{front}")
        for address in lines["workloads"].get(front.partition("/")[2], []):
            if address.get("ports"):
                return f"curl http://{address['address']}:{next(iter(address['ports'].values()))}/"
    except CommandError:
        pass
    return f"{command_path()} endpoints {front}"


def _short(path: str) -> str:
    """The path relative to the working directory, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") and len(relative) < len(path) else path


def follow_supervisor_log(layout: Layout, supervisor: ProcessIdentity, *, quiet: bool) -> None:
    """Prints the supervisor's log until the supervisor exits or the user interrupts this command."""
    with contextlib.suppress(KeyboardInterrupt), layout.log("supervisor").open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        while is_alive(supervisor):
            line = log.readline()
            if not line:
                wait_exited(supervisor, 0.25)
            elif not quiet:
                print_note(line.rstrip())


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt
