"""The agent's own certificate: got with a join token, renewed before it ends, replaced when a new token is put there.

Owns `identity/`: `node.pem`, the key and its certificate in one file, so that both change in one step; `next.key`, the
key of a request whose answer is awaited, so that asking again is the same request; `token`, the hash of the token that
was used last. What always holds: a key is made here, readable by its owner alone, and goes nowhere.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import structlog

from holdfast.agent.config import AgentConfig
from holdfast.client.http import HttpClient
from holdfast.gate.certificates import write_private
from holdfast.gate.node_certificates import lifetime, new_key, request_for
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.join import Joined, JoinRequest, RenewalRequest
from holdfast.model.times import seconds_text
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff, jittered_s
from holdfast.runtime.ports import Ports

_log = structlog.get_logger()
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class Identity:
    """`path` is what a client shows: it is there and good once `obtain` has returned."""

    def __init__(self, config: AgentConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._folder = config.identity_dir
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self.path = self._folder / "node.pem"
        self._next_key = self._folder / "next.key"
        self._used = self._folder / "token"

    async def obtain(self) -> None:
        """Returns with a certificate that is good. Waits for a token, and for the region; raises if it says no."""
        told = False
        while not self._good():
            token = self._new_token()
            if token:
                await self._join(token)
                continue
            if not told:
                where = self._config.join_token_file or "(no join token file is set)"
                _log.warning("join_token_awaited", node=self._config.name, file=where)
                told = True
            await self._ports.clock.sleep(limits.JOIN_LOOK_EVERY_S)

    async def keep(self, client: HttpClient) -> None:
        """For as long as the agent runs: renews in time, and joins again when there is another token."""
        backoff = Backoff(self._ports.random, first_s=1.0, max_s=60.0)
        renew_at_s = self._renew_at_s()
        refused = ""
        while True:
            await self._ports.clock.sleep(limits.JOIN_LOOK_EVERY_S)
            metrics.AGENT_CERTIFICATE_LEFT.set(max(0.0, self._ends_s() - self._ports.clock.now()))
            token = self._new_token()
            try:
                if token and token != refused:
                    refused = token
                    await self._join(token)
                    refused = ""
                elif self._ports.clock.now() >= renew_at_s:
                    await self._renew(client)
                else:
                    continue
            except Fault as fault:
                _log.warning(
                    "certificate_not_renewed", node=self._config.name, reason=fault.reason, error=fault.message,
                    ends=seconds_text(self._ends_s()),
                )  # fmt: skip
                renew_at_s = self._ports.clock.now() + backoff.next_s()
                continue
            backoff.reset()
            await client.reload_certificate()
            renew_at_s = self._renew_at_s()

    async def _join(self, token: str) -> None:
        """Asks until there is an answer: a region that is not there yet is no reason to give up."""
        backoff = Backoff(self._ports.random, first_s=limits.AGENT_RETRY_FIRST_S, max_s=limits.AGENT_RETRY_MAX_S)
        key = self._key_to_ask_with()
        asked = JoinRequest(token=token, node=self._config.name, csr=request_for(key, self._config.name))
        client = HttpClient(self._config.url, self._ports, cell=self._config.region, ca=self._config.ca)
        try:
            while True:
                try:
                    made = await client.join(asked)
                    break
                except Fault as fault:
                    _log.warning("join_failed", node=self._config.name, reason=fault.reason, error=fault.message)
                    if not fault.retryable:
                        raise
                await self._ports.clock.sleep(backoff.next_s())
        finally:
            await client.close()
        write_private(self._used, _hash(token).encode())
        self._keep_made(key, made)
        _log.info("node_joined", node=self._config.name, generation=made.generation, ends=made.expires_at)

    async def _renew(self, client: HttpClient) -> None:
        key = self._key_to_ask_with()
        made = await client.renew_certificate(RenewalRequest(csr=request_for(key, self._config.name)))
        self._keep_made(key, made)
        _log.info("certificate_renewed", node=self._config.name, generation=made.generation, ends=made.expires_at)

    def _key_to_ask_with(self) -> bytes:
        if not self._next_key.exists():
            write_private(self._next_key, new_key())
        return self._next_key.read_bytes()

    def _keep_made(self, key: bytes, made: Joined) -> None:
        write_private(self.path, key + made.certificate.encode())
        self._next_key.unlink(missing_ok=True)

    def _new_token(self) -> str:
        """The token in the file, unless it is the one that was used last."""
        if not self._config.join_token_file:
            return ""
        try:
            token = Path(self._config.join_token_file).read_text(encoding="utf-8").strip()
            used = self._used.read_text(encoding="utf-8").strip() if self._used.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("join_token_unreadable", file=self._config.join_token_file, error=str(error))
            return ""
        return token if token and (_hash(token) != used or not self.path.exists()) else ""

    def _good(self) -> bool:
        return self.path.exists() and self._ports.clock.now() < self._ends_s()

    def _ends_s(self) -> float:
        return self._lifetime()[1]

    def _renew_at_s(self) -> float:
        start_s, end_s = self._lifetime()
        return start_s + jittered_s((end_s - start_s) * limits.NODE_CERTIFICATE_RENEW_AT, self._ports.random)

    def _lifetime(self) -> tuple[float, float]:
        held = self.path.read_bytes()
        return lifetime(held[held.index(_CERTIFICATE) :])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
