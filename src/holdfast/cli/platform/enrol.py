"""Join tokens: created through a region's API, which stores only the hash, and handed to the agents of the platform."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

from holdfast.cli.http import Api, Refusal
from holdfast.cli.platform.layout import Layout, Platform, write_whole
from holdfast.cli.platform.survey import connect
from holdfast.model import limits
from holdfast.model.join import token_text

PATH = "/apis/holdfast.dev/v1/jointokens"
# Lifetime of the tokens for the platform's own agents. An agent that starts later gets a new token with the next `up`.
UP_TTL_S = 600.0


def make_token(
    api: Api, region: str, name: str, *, node: str = "", uses: int = 1, ttl_s: float = limits.JOIN_TTL_S,
    certificate_s: float = limits.NODE_CERTIFICATE_S,
) -> str:  # fmt: skip
    """Creates a join token and returns its text. The region stores only the hash."""
    text = token_text(region, secrets.token_urlsafe(32))
    spec: dict[str, Any] = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(), "ttlSeconds": ttl_s, "uses": uses,
        "certificateSeconds": certificate_s, **({"node": node} if node else {}),
    }  # fmt: skip
    body = {"apiVersion": "holdfast.dev/v1", "kind": "JoinToken", "metadata": {"name": name}, "spec": spec}
    api.request("POST", PATH, body)
    return text


def enrol(layout: Layout, platform: Platform) -> None:
    """Issues a join token for every agent that has neither joined nor a valid token. Raises if a region is
    unreachable."""
    for region in platform.regions:
        waiting = [a.name for a in region.agents if not layout.identity(a.name).exists() and not _fresh(layout, a.name)]
        api = connect(layout, platform, region.name) if waiting else None
        for node in waiting:
            assert api is not None
            name = f"up-{node}"
            try:
                api.request("DELETE", f"{PATH}/{name}")  # left by a start that ended before the agent joined
            except Refusal as refusal:
                if refusal.status != 404:
                    raise
            text = make_token(api, region.name, name, node=node, ttl_s=UP_TTL_S)
            layout.join_token(node).parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(layout.join_token(node), text.encode() + b"\n")


def _fresh(layout: Layout, node: str) -> bool:
    """Whether the agent has a token file that is not expired. An interrupted `up` may have left an old one."""
    try:
        return time.time() - layout.join_token(node).stat().st_mtime < UP_TTL_S
    except FileNotFoundError:
        return False


def clear(layout: Layout, platform: Platform) -> None:
    """Deletes the token files of agents that have joined."""
    for region in platform.regions:
        for agent in region.agents:
            if layout.identity(agent.name).exists():
                layout.join_token(agent.name).unlink(missing_ok=True)
