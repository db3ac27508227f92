"""The command lines of the platform's processes."""

from __future__ import annotations

import os
import signal

from holdfast.platform import local_etcd
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import AgentPlan, Layout, Platform, RegionPlan, write_atomically
from holdfast.platform.supervisor import Program, path_with_venv, python_command

GLOBAL_START_ORDER, REGION_START_ORDER, AGENT_START_ORDER, PROVIDER_START_ORDER = 0, 1, 2, 3
PROVIDER, NAME_SERVER = "provider", "dns"
PROXY_STOP_S = 40.0
PROXY_SETTINGS = """# Settings of the entry proxy, read when it starts. docs/how-to/entry-proxy.md lists the keys.
region = "{region}"
status = "127.0.0.1:{status}"

[[http]]
port = {port}
tenants = ["*"]
"""
CELL_STOP_S = 10.0
AGENT_STOP_S = 20.0


def programs(platform: Platform, layout: Layout) -> list[Program]:
    """All programs in start order: etcd members, global cell, regional cells, agents; then name server, entry proxies
    and node provider."""
    found = local_etcd.etcd_programs(platform, layout)
    more = ("--drills", str(layout.drill_desk), *_store(platform, "global"))
    found.append(_cell("global", platform.port_base, layout, start_order=GLOBAL_START_ORDER, more=more))
    for region in platform.regions:
        more = ("--global-url", platform.global_url, *_store(platform, region.name))
        found.append(_cell(region.name, region.port, layout, start_order=REGION_START_ORDER, more=more))
    for region in platform.regions:
        found.extend(agent_program(agent, region, layout, dns=platform.dns) for agent in region.agents)
    argv = python_command("dns", "--listen", platform.dns, "--state", str(layout.root))
    found.append(Program(name=NAME_SERVER, argv=argv, start_order=PROVIDER_START_ORDER))
    found.extend(_proxy(region, platform, layout) for region in platform.proxies)
    if platform.provider:
        argv = python_command("pool", "provide", "--measure", "--state", str(layout.root))
        found.append(Program(name=PROVIDER, argv=argv, start_order=PROVIDER_START_ORDER))
    return found


def write_proxy_settings(platform: Platform, layout: Layout) -> None:
    """Settings for each proxy that has none yet: one HTTP listener for all tenants."""
    for region in platform.proxies:
        path = layout.proxy_settings(region)
        if path.exists():
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = PROXY_SETTINGS.format(
            region=region, status=platform.proxy_status_port(region), port=platform.proxy_port(region)
        )
        write_atomically(path, text.encode())


def _proxy(region: str, platform: Platform, layout: Layout) -> Program:
    argv = python_command("proxy", "--config", str(layout.proxy_settings(region)), "--state", str(layout.root))
    return Program(
        name=f"proxy-{region}",
        argv=argv,
        start_order=PROVIDER_START_ORDER,
        stop_signals=((int(signal.SIGTERM), PROXY_STOP_S),),
    )


def _store(platform: Platform, cell: str) -> tuple[str, ...]:
    if cell not in platform.etcd_cells:
        return ()
    return ("--store", "etcd", "--etcd-endpoints", ",".join(local_etcd.etcd_endpoints(platform)))


def _cell(name: str, port: int, layout: Layout, *, start_order: int, more: tuple[str, ...] = ()) -> Program:
    files = Credentials(layout).cell(name)
    options = (
        "--cell",
        name,
        "--state",
        str(layout.cell(name)),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--tls-cert",
        str(files.cert),
        "--tls-key",
        str(files.key),
        "--client-ca",
        str(files.ca),
        "--tokens",
        str(layout.tokens),
    )
    if start_order != REGION_START_ORDER and layout.node_settings.exists():
        more = (*more, "--images", str(layout.node_settings))
    if start_order == REGION_START_ORDER:
        link = Credentials(layout).link(name)
        nodes, nodes_key = Credentials(layout).nodes(name)
        more = (*more, "--link-cert", str(link.cert), "--link-key", str(link.key))
        more = (*more, "--node-ca", str(nodes), "--node-ca-key", str(nodes_key))
    return Program(
        name=f"cell-{name}",
        argv=python_command("serve", *options, *more),
        start_order=start_order,
        stop_signals=((int(signal.SIGTERM), CELL_STOP_S),),
    )


def agent_program(agent: AgentPlan, region: RegionPlan, layout: Layout, *, dns: str, pool: str = "") -> Program:
    options = [
        "--name",
        agent.name,
        "--region",
        region.name,
        "--zone",
        agent.zone,
        "--url",
        region.url,
        "--ca",
        str(Credentials(layout).ca),
        "--join-token-file",
        str(layout.join_token(agent.name)),
        "--state",
        str(layout.agent(agent.name)),
        "--ports",
        f"{agent.ports[0]}-{agent.ports[1]}",
        "--host-path",
        str(layout.shared),
        "--dns",
        dns,
        "--stop-work-on-exit",
    ]
    if layout.node_settings.exists():
        options += ["--config", str(layout.node_settings)]
    if pool:
        options += ["--pool", pool]
    if agent.tenant:
        options += ["--tenant", agent.tenant]
    for resource, amount in agent.capacity.items():
        options += ["--capacity", f"{resource}={amount}"]
    if agent.volumes:
        options += ["--volumes", f"{layout.agent(agent.name)}-volumes={agent.volumes}"]
    for device, model in agent.gpus:
        options += ["--gpu", f"{device}={model}"]
    return Program(
        name=f"agent-{agent.name}",
        argv=python_command("agent", *options),
        start_order=AGENT_START_ORDER,
        env={"PATH": path_with_venv(os.environ.get("PATH", os.defpath))},
        stop_signals=((int(signal.SIGTERM), AGENT_STOP_S),),
    )
