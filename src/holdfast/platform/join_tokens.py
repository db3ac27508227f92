"""Join tokens: created through a region's API, which stores only the hash, and handed to the agents of the platform."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.model import limits
from holdfast.model.join import token_text
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout, Platform, write_atomically

JOIN_TOKENS_PATH = "/apis/holdfast.dev/v1/jointokens"
# Lifetime of the tokens for the platform's own agents. An agent that starts later gets a new token with the next `up`.
AGENT_TOKEN_TTL_S = 600.0


def create_join_token(
    api: CellApi,
    region: str,
    name: str,
    *,
    node: str = "",
    uses: int = 1,
    ttl_s: float = limits.JOIN_TOKEN_TTL_S,
    certificate_s: float = limits.NODE_CERTIFICATE_LIFETIME_S,
) -> str:
    """Creates a join token and returns its text. The region stores only the hash."""
    text = token_text(region, secrets.token_urlsafe(32))
    spec: dict[str, Any] = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "ttlSeconds": ttl_s,
        "uses": uses,
        "certificateSeconds": certificate_s,
        **({"node": node} if node else {}),
    }
    body = {"apiVersion": "holdfast.dev/v1", "kind": "JoinToken", "metadata": {"name": name}, "spec": spec}
    api.request("POST", JOIN_TOKENS_PATH, body)
    return text


def issue_agent_tokens(layout: Layout, platform: Platform) -> None:
    """Issues a join token for every agent that has neither joined nor a valid token. Raises if a region is
    unreachable."""
    for region in platform.regions:
        waiting = [a.name for a in region.agents if not layout.identity(a.name).exists() and not _fresh(layout, a.name)]
        api = connect_cell(layout, platform, region.name) if waiting else None
        for node in waiting:
            assert api is not None
            name = f"up-{node}"
            try:
                api.request(
                    "DELETE", f"{JOIN_TOKENS_PATH}/{name}"
                )  # left by a start that ended before the agent joined
            except ApiRefusal as refusal:
                if refusal.status != 404:
                    raise
            text = create_join_token(api, region.name, name, node=node, ttl_s=AGENT_TOKEN_TTL_S)
            layout.join_token(node).parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(layout.join_token(node), text.encode() + b"\n")


def _fresh(layout: Layout, node: str) -> bool:
    """Whether the agent has a token file that is not expired. An interrupted `up` may have left an old one."""
    try:
        return time.time() - layout.join_token(node).stat().st_mtime < AGENT_TOKEN_TTL_S
    except FileNotFoundError:
        return False


def remove_used_tokens(layout: Layout, platform: Platform) -> None:
    """Deletes the token files of agents that have joined."""
    for region in platform.regions:
        for agent in region.agents:
            if layout.identity(agent.name).exists():
                layout.join_token(agent.name).unlink(missing_ok=True)
