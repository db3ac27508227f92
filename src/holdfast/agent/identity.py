"""The agent's certificate: obtained with a join token, renewed before it expires, replaced when a new token appears.

Owns the directory `identity/`:
- `node.pem`: key and certificate in one file, so that both change atomically;
- `next.key`: key of a pending request, so that a retry is the same request;
- `token`: hash of the last token used;
- `servers`: URLs of the region's servers, as the region said last.

The private key is created here, is readable only by its owner, and never leaves the node.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import structlog

from holdfast.agent.config import AgentConfig
from holdfast.agent.limits import AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.client.http import HttpClient
from holdfast.client.server_urls import split_urls, starting_at
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.identity.certificates import write_private
from holdfast.identity.node_certificates import make_csr, new_key, validity_period
from holdfast.model.errors import Fault
from holdfast.model.join import JoinRequest, JoinResponse, RenewalRequest
from holdfast.model.times import seconds_text

# Fraction of a certificate's lifetime after which the agent renews it (jittered). The rest is time for retries.
NODE_CERTIFICATE_RENEW_FRACTION = 0.6
# Interval at which an agent checks for a new join token and for the renewal of its certificate.
JOIN_TOKEN_POLL_S = 2.0

# Interval at which an agent asks its region for the platform's CA certificates. A CA rotation waits for several of it.
TRUST_CHECK_EVERY_S = 15.0

_log = structlog.get_logger()
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class AgentIdentity:
    """`path` is the certificate file for clients. It is valid once `obtain` has returned."""

    def __init__(self, config: AgentConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._folder = config.identity_dir
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self.path = self._folder / "node.pem"
        self._next_key = self._folder / "next.key"
        self._used_token = self._folder / "token"
        self._servers = self._folder / "servers"

    def servers(self) -> str:
        """URLs of the region's servers: those that the region named last, else those of the configuration. Each agent
        begins at another one."""
        try:
            known = split_urls(self._servers.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError):
            known = ("",)
        urls = known if known[0] else split_urls(self._config.url)
        return ",".join(starting_at(urls, zlib.crc32(self._config.name.encode())))

    async def obtain(self) -> None:
        """Returns with a valid certificate. Waits for a token and for the region; raises if the region refuses."""
        warned = False
        while not self._is_valid():
            token = self._new_token()
            if token:
                await self._join(token)
                continue
            if not warned:
                where = self._config.join_token_file or "(no join token file is set)"
                _log.warning("join_token_missing", node=self._config.name, file=where)
                warned = True
            await self._ports.clock.sleep(JOIN_TOKEN_POLL_S)

    async def keep_valid(self, client: HttpClient) -> None:
        """Runs as long as the agent: renews the certificate in time, and joins again when a new token appears."""
        backoff = Backoff(self._ports.random, first_s=1.0, max_s=60.0)
        renew_at_s = self._renew_at_s()
        trust_at_s = self._ports.clock.now()
        refused = ""
        while True:
            await self._ports.clock.sleep(JOIN_TOKEN_POLL_S)
            if self._ports.clock.now() >= trust_at_s:
                trust_at_s = self._ports.clock.now() + TRUST_CHECK_EVERY_S
                await self._refresh_trust(client)
            metrics.AGENT_CERTIFICATE_REMAINING.set(max(0.0, self._expires_s() - self._ports.clock.now()))
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
                    "certificate_renewal_failed",
                    node=self._config.name,
                    reason=fault.reason,
                    error=fault.message,
                    ends=seconds_text(self._expires_s()),
                )
                renew_at_s = self._ports.clock.now() + backoff.next_s()
                continue
            backoff.reset()
            await client.reload_certificate()
            renew_at_s = self._renew_at_s()

    async def _refresh_trust(self, client: HttpClient) -> None:
        """Follows a rotation of the platform's CA. The file of an operator, outside of `identity/`, is not touched."""
        path = Path(self._config.ca)
        if path.parent.resolve() != self._folder.resolve():
            return
        try:
            trusted = await client.trust_bundle()
            found = trusted.ca.encode()
        except (Fault, ValueError):
            return  # the region is away, or does not answer this call yet; asked again later
        if trusted.servers and set(trusted.servers) != set(client.urls):
            write_private(self._servers, ",".join(trusted.servers).encode())
            client.use_servers(split_urls(self.servers()))
            _log.info("region_servers_changed", node=self._config.name, servers=list(trusted.servers))
        if not _replace_bundle(path, found):
            return
        await client.reload_certificate()
        _log.info("trusted_ca_changed", node=self._config.name, file=str(path))

    async def _join(self, token: str) -> None:
        """Retries until the region responds, because the region may start later than the agent."""
        backoff = Backoff(self._ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=AGENT_RETRY_MAX_S)
        key = self._request_key()
        join_request = JoinRequest(token=token, node=self._config.name, csr=make_csr(key, self._config.name))
        client = HttpClient(self.servers(), self._ports, cell=self._config.region, ca=self._config.ca)
        try:
            while True:
                try:
                    made = await client.join(join_request)
                    break
                except Fault as fault:
                    _log.warning("join_failed", node=self._config.name, reason=fault.reason, error=fault.message)
                    if not fault.retryable:
                        raise
                await self._ports.clock.sleep(backoff.next_s())
        finally:
            await client.close()
        write_private(self._used_token, _hash(token).encode())
        self._store_certificate(key, made)
        _log.info("node_joined", node=self._config.name, generation=made.generation, ends=made.expires_at)

    async def _renew(self, client: HttpClient) -> None:
        key = self._request_key()
        made = await client.renew_certificate(RenewalRequest(csr=make_csr(key, self._config.name)))
        self._store_certificate(key, made)
        _log.info("certificate_renewed", node=self._config.name, generation=made.generation, ends=made.expires_at)

    def _request_key(self) -> bytes:
        if not self._next_key.exists():
            write_private(self._next_key, new_key())
        return self._next_key.read_bytes()

    def _store_certificate(self, key: bytes, made: JoinResponse) -> None:
        write_private(self.path, key + made.certificate.encode())
        self._next_key.unlink(missing_ok=True)

    def _new_token(self) -> str:
        """The token in the file, unless it is the last one used."""
        if not self._config.join_token_file:
            return ""
        try:
            token = Path(self._config.join_token_file).read_text(encoding="utf-8").strip()
            used = self._used_token.read_text(encoding="utf-8").strip() if self._used_token.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("join_token_read_failed", file=self._config.join_token_file, error=str(error))
            return ""
        return token if token and (_hash(token) != used or not self.path.exists()) else ""

    def _is_valid(self) -> bool:
        return self.path.exists() and self._ports.clock.now() < self._expires_s()

    def _expires_s(self) -> float:
        return self._lifetime()[1]

    def _renew_at_s(self) -> float:
        start_s, end_s = self._lifetime()
        return start_s + jittered_s((end_s - start_s) * NODE_CERTIFICATE_RENEW_FRACTION, self._ports.random)

    def _lifetime(self) -> tuple[float, float]:
        held = self.path.read_bytes()
        return validity_period(held[held.index(_CERTIFICATE) :])


def _replace_bundle(path: Path, found: bytes) -> bool:
    """Writes the CA certificates if they differ from the file's. Returns whether they did."""
    if not found.startswith(_CERTIFICATE) or found == path.read_bytes():
        return False
    write_private(path, found)
    return True


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
