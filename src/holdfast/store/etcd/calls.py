"""Calls to the members of one etcd cluster: member selection, timeouts, login, and the meaning of failures.

A read is retried at another member. A write is sent once; it is repeated only if it certainly never left, or if etcd
refused it for an expired login. The cluster id and revision of every response are checked, so that a replaced or wiped
cluster is detected before anything depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog

from holdfast.model import limits
from holdfast.model.errors import Fault, Retryable, StoreFailed, Unavailable
from holdfast.store.etcd import faults, wire
from holdfast.store.etcd.target import EtcdTarget

# Time for one etcd call. After that, another member is tried.
ETCD_CALL_TIMEOUT_S = 5.0
# Time to connect to an etcd member. After that, another member is tried.
ETCD_CONNECT_TIMEOUT_S = 3.0
# Interval of gRPC keepalives to etcd, which detect a dead connection.
ETCD_KEEPALIVE_S = 10.0
# Keys read from etcd per call. The rest is read in the next call.
ETCD_PAGE_KEYS = 2_000

_log = structlog.get_logger()

OLDEST_VERSION = (3, 4)
_REQUIRE_LEADER = (("hasleader", "true"),)


class EtcdMember:
    """One endpoint and its channel."""

    def __init__(self, target: EtcdTarget, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        host = address.partition("://")[2]
        options = _channel_options()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(host, options=options)
        else:
            self._channel = grpc.aio.secure_channel(host, credentials, options=options)
        self._unary = {
            name: self._channel.unary_unary(
                wire.path_of(name),
                request_serializer=_serialize,
                response_deserializer=wire.response_class(name).FromString,
            )
            for name in wire.METHODS
            if name != "Watch"
        }
        self._watch = self._channel.stream_stream(
            wire.path_of("Watch"),
            request_serializer=_serialize,
            response_deserializer=wire.response_class("Watch").FromString,
        )

    async def call(self, method: str, request: Any, *, timeout_s: float, metadata: Sequence[tuple[str, str]]) -> Any:
        return await self._unary[method](request, timeout=timeout_s, metadata=metadata)

    def watch(self, metadata: Sequence[tuple[str, str]]) -> Any:
        return self._watch(metadata=metadata)

    async def close(self) -> None:
        await self._channel.close()


class EtcdCalls:
    def __init__(self, target: EtcdTarget, first: int = 0) -> None:
        """`first` spreads the cells over the members: each cell starts with another one."""
        self.target = target
        self.cluster_id = 0
        self.revision = 0
        """Newest etcd revision seen in a linearizable response."""
        credentials = _credentials(target)
        self._members = [EtcdMember(target, address, credentials) for address in _addresses(target)]
        self._current = first % len(self._members)
        self._token = ""
        self._login = asyncio.Lock()

    @property
    def addresses(self) -> str:
        return ", ".join(member.address for member in self._members)

    async def open(self) -> str:
        """Queries the status of every member. Returns the oldest version among them; raises if the cluster cannot
        be used.
        """
        problems: list[Fault] = []
        versions: dict[tuple[int, int], str] = {}
        clusters: dict[int, str] = {}
        if self.target.user:
            await self._authenticate()
        statuses = await asyncio.gather(*map(self._status, self._members), return_exceptions=True)
        for member, status in zip(self._members, statuses, strict=True):
            if isinstance(status, Fault):
                problems.append(status)
            elif isinstance(status, BaseException):
                raise status
            else:
                clusters.setdefault(status.header.cluster_id, member.address)
                versions[_version(status.version)] = status.version
        if not versions:
            raise problems[0]
        if len(clusters) > 1:
            members = ", ".join(f"{address} to {number:x}" for number, address in clusters.items())
            raise StoreFailed(f"--etcd-endpoints: several clusters ({members}); next: list members of one cluster")
        oldest = min(versions)
        if oldest < OLDEST_VERSION:
            raise StoreFailed(
                f"etcd: version too old (expected {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]} or newer, "
                f"found {versions[oldest]})"
            )
        self.cluster_id = next(iter(clusters))
        for problem in problems:
            _log.warning("etcd_member_unreachable", message=problem.message)
        return versions[oldest]

    async def read(self, method: str, request: Any) -> Any:
        """Tries one member after another until one responds."""
        last: Fault | None = None
        for _ in range(max(limits.READ_ATTEMPTS, len(self._members))):
            member = self._members[self._current]
            try:
                return self._check_response(await self._once(member, method, request))
            except grpc.aio.AioRpcError as error:
                fault = faults.definite_fault(error, member.address) or faults.unavailable_fault(error, member.address)
                if not isinstance(fault, Unavailable):
                    raise fault from error
                last = fault
                self._skip(member)
                await asyncio.sleep(limits.BACKOFF_FIRST_S)
        assert last is not None
        raise last

    async def write(self, method: str, request: Any) -> Any:
        """Sends it once. Raises Ambiguous if it is unknown whether it happened."""
        last: Fault | None = None
        for _ in range(len(self._members)):
            member = self._members[self._current]
            try:
                return self._check_response(await self._once(member, method, request))
            except grpc.aio.AioRpcError as error:
                fault = faults.definite_fault(error, member.address)
                if fault is None:
                    self._skip(member)
                    raise faults.ambiguous_fault(error, member.address) from error
                if not isinstance(fault, Unavailable) or "NOSPACE" in fault.message:
                    raise fault from error
                last = fault
                self._skip(member)
        assert last is not None
        raise last

    async def watch(self) -> tuple[Any, str]:
        """A new watch stream on the current member, with the member's address."""
        member = self._members[self._current]
        return member.watch((*_REQUIRE_LEADER, *self._auth_metadata())), member.address

    def next_member(self, address: str) -> None:
        """Switches to the next member."""
        self._skip(next(member for member in self._members if member.address == address))

    async def login_again(self) -> None:
        if self.target.user:
            await self._authenticate(stale=self._token)

    def check_cluster(self, header: Any) -> None:
        """Checks that a response came from the same cluster."""
        if self.cluster_id and header.cluster_id != self.cluster_id:
            raise StoreFailed(
                f"etcd at {self.addresses}: another cluster, so the cell stopped writing (expected id "
                f"{self.cluster_id:x}, found {header.cluster_id:x}); next: point the cell at its own cluster, or "
                "holdfast restore"
            )

    async def close(self) -> None:
        for member in self._members:
            await member.close()

    # Inside

    async def _once(self, member: EtcdMember, method: str, request: Any) -> Any:
        for attempt in (0, 1):
            token = self._token
            before = self.revision
            try:
                response = await member.call(
                    method, request, timeout_s=ETCD_CALL_TIMEOUT_S, metadata=(*_REQUIRE_LEADER, *self._auth_metadata())
                )
            except grpc.aio.AioRpcError as error:
                if attempt or not self.target.user or not faults.needs_login(error):
                    raise
                await self._authenticate(stale=token)
                continue
            # Compared with the revision at the start of the call: a concurrent call may have raised it since.
            if response.header.revision < before and response.header.cluster_id == self.cluster_id:
                raise StoreFailed(
                    f"etcd at {self.addresses}: its revision went backwards, so it was wiped or restored and the cell "
                    f"stopped writing (expected {before} or newer, found {response.header.revision}); next: holdfast "
                    "restore"
                )
            self.revision = max(self.revision, response.header.revision)
            return response
        raise AssertionError("the second attempt returns or raises")

    def _check_response(self, response: Any) -> Any:
        self.check_cluster(response.header)
        return response

    def _auth_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    def _skip(self, member: EtcdMember) -> None:
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    async def _status(self, member: EtcdMember) -> Any:
        try:
            return await member.call(
                "Status", wire.StatusRequest(), timeout_s=ETCD_CONNECT_TIMEOUT_S, metadata=self._auth_metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise (
                faults.definite_fault(error, member.address) or faults.unavailable_fault(error, member.address)
            ) from error

    async def _authenticate(self, stale: str = "") -> None:
        async with self._login:
            if stale != self._token:
                return  # another call has logged in meanwhile
            request = wire.AuthenticateRequest(name=self.target.user, password=_password(self.target))
            last: Fault | None = None
            for member in (*self._members[self._current :], *self._members[: self._current]):
                try:
                    response = await member.call("Authenticate", request, timeout_s=ETCD_CONNECT_TIMEOUT_S, metadata=())
                except grpc.aio.AioRpcError as error:
                    if "authentication is not enabled" in (error.details() or ""):
                        _log.warning("etcd_user_ignored", user=self.target.user, reason="authentication is not enabled")
                        return
                    last = faults.definite_fault(error, member.address) or faults.unavailable_fault(
                        error, member.address
                    )
                    if not isinstance(last, Retryable):
                        raise last from error
                    continue
                self._token = response.token
                return
            assert last is not None
            raise last


def _addresses(target: EtcdTarget) -> list[str]:
    if not target.endpoints:
        raise StoreFailed("--etcd-endpoints: missing; next: add --etcd-endpoints https://HOST:2379,…")
    found = []
    for text in target.endpoints:
        address = text.rstrip("/") if "://" in text else f"{'https' if target.ca or target.cert else 'http'}://{text}"
        scheme, _, host = address.partition("://")
        if scheme not in ("http", "https") or not host or ":" not in host:
            raise StoreFailed(f"--etcd-endpoints {text}: invalid (expected http://HOST:PORT or https://HOST:PORT)")
        found.append(address)
    if len({address.partition("://")[0] for address in found}) > 1:
        raise StoreFailed("--etcd-endpoints: http and https are mixed (expected one of them)")
    if found[0].startswith("http://") and (target.ca or target.cert):
        raise StoreFailed("--etcd-ca, --etcd-cert: not usable with http:// endpoints (expected https://)")
    return list(dict.fromkeys(found))


def _credentials(target: EtcdTarget) -> grpc.ChannelCredentials | None:
    if not _addresses(target)[0].startswith("https://"):
        return None
    if bool(target.cert) != bool(target.key):
        raise StoreFailed("--etcd-cert, --etcd-key: one of them is missing (expected both)")
    return grpc.ssl_channel_credentials(
        root_certificates=_file(target.ca, "--etcd-ca"),
        private_key=_file(target.key, "--etcd-key"),
        certificate_chain=_file(target.cert, "--etcd-cert"),
    )


def _file(path: str, option: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StoreFailed(f"{option} {path}: cannot read it ({error.strerror})") from error


def _password(target: EtcdTarget) -> str:
    if not target.password_file:
        raise StoreFailed(f"--etcd-user {target.user}: the password is missing; next: add --etcd-password-file FILE")
    held = _file(target.password_file, "--etcd-password-file")
    assert held is not None
    return held.decode().strip()


def _version(text: str) -> tuple[int, int]:
    parts = text.split(".")
    with contextlib.suppress(ValueError, IndexError):
        return int(parts[0]), int(parts[1])
    raise StoreFailed(f"--etcd-endpoints: not an etcd server (unexpected version {text!r})")


def _serialize(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw


def _channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", int(ETCD_KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(ETCD_CONNECT_TIMEOUT_S * 1000)),
        # etcd closes connections that are pinged without an active call; an open watch always is one.
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(ETCD_CONNECT_TIMEOUT_S * 1000)),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # No hidden retries, no proxy, no channel shared with another store of this process.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
