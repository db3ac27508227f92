"""An additional agent, joined with a token from the command line, as an operator does."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.platforms import RunningPlatform, holdfast

from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout
from holdfast.platform.supervisor import path_with_venv, python_command


def join_token(platform: RunningPlatform, region: str, name: str, *arguments: str) -> str:
    return holdfast(
        "token", "create", name, "--join", region, *arguments, "--state", str(platform.state)
    ).stdout.strip()


PORTS = "29900-29999"


def command(
    platform: RunningPlatform, region: str, name: str, token_file: Path, *, port: int = 0, ports: str = PORTS
) -> tuple[str, ...]:
    """`port` is another way to the region, such as a proxy. `ports` is the agent's port range for tasks."""
    layout = Layout(str(platform.state))
    plan = next(r for r in layout.load().regions if r.name == region)
    return python_command(
        "agent",
        "--name",
        name,
        "--region",
        region,
        "--zone",
        plan.agents[0].zone,
        "--url",
        f"https://127.0.0.1:{port or plan.port}",
        "--ca",
        str(Credentials(layout).ca),
        "--join-token-file",
        str(token_file),
        "--state",
        str(layout.agent(name)),
        "--ports",
        ports,
        "--capacity",
        "cpu=4",
        "--capacity",
        "memory=4Gi",
        "--host-path",
        str(layout.shared),
        "--stop-work-on-exit",
    )


@contextlib.contextmanager
def joined_agent(
    platform: RunningPlatform, region: str, name: str, *arguments: str, port: int = 0, ports: str = PORTS
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the block ends. `arguments` are further options of the token."""
    token_file = platform.state / f"{name}.token"
    token_file.write_text(join_token(platform, region, f"for-{name}", *arguments))
    with (platform.state / f"{name}.log").open("wb") as log:
        agent = subprocess.Popen(
            command(platform, region, name, token_file, port=port, ports=ports),
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": path_with_venv(os.environ["PATH"])},
        )
    try:
        yield agent
    finally:
        agent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(30)
        agent.kill()
