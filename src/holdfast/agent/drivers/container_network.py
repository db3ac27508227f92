"""The network of a container: that of the node, or one of its own.

With its own, the container sees a loopback of its own and one interface. Only its assigned ports are reachable from
outside: each port of the node is forwarded to the port that the program listens on. The shim makes the network
(`agent.shim_network`).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.foundation.container_runtime import private_network_program, private_network_refusal
from holdfast.model.reasons import Reason
from holdfast.model.template import NetworkMode, listening_ports, udp_ports

RESOLVER = "10.0.2.3"
"""Where slirp4netns answers DNS queries: it passes them to the resolver of the node."""
RESOLV_CONF = "/etc/resolv.conf"


class ContainerNetwork:
    """`address` is the node's: its forwarded ports listen there, or everywhere if it is a name."""

    def __init__(self, address: str) -> None:
        try:
            self._host = str(ipaddress.IPv4Address(address))
        except ValueError:
            self._host = "0.0.0.0"

    def add_to(self, config: dict[str, Any], task: Task, folder: Path) -> list[tuple[str, object]]:
        """Adapts the configuration, and returns the launch settings that make the shim create the network."""
        if task.template.network is not NetworkMode.PRIVATE:
            return []
        if why := private_network_refusal():
            message = f"network Private: this node cannot make one ({why}); next: use another node, or network Host"
            raise StartFailed(Reason.DRIVER_MISSING, message)
        resolv = folder / "resolv.conf"
        resolv.write_text(f"nameserver {RESOLVER}\n")
        resolv.chmod(0o644)
        for mount in config["mounts"]:
            if mount.get("destination") == RESOLV_CONF:
                mount["source"] = str(resolv)
        # The runtime inherits the network of the shim. Naming it makes a later `exec` join it as well.
        config["linux"]["namespaces"].append({"type": "network", "path": "/proc/self/ns/net"})
        udp, inside = udp_ports(task.template), listening_ports(task.template, task.ports)
        forwards = [
            ("forward", f"{'udp' if name in udp else 'tcp'}:{self._host}:{port}:{inside[name]}")
            for name, port in task.ports.items()
        ]
        return [("network", private_network_program()), *forwards]
