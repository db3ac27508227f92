"""Members of an etcd cluster that Holdfast started: listed, added as learners, promoted and removed.

Blocking calls, for commands and for threads. A learner does not vote, so that a machine which fails while it joins
cannot cost the cluster its majority.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import msgspec

from holdfast.model.errors import Unavailable
from holdfast.store.etcd import wire
from holdfast.store.etcd.target import EtcdTarget

# Time for one call to etcd about its members.
MEMBER_CALL_S = 10.0


class ClusterMember(msgspec.Struct, frozen=True):
    """`name` is empty for a member that has not started yet."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...] = ()
    learner: bool = False


class EtcdRefusal(Unavailable):
    """etcd answered, and refused."""


def list_members(target: EtcdTarget) -> list[ClusterMember]:
    return _members(_call(target, "MemberList", wire.MemberListRequest()))


def add_learner(target: EtcdTarget, peer_url: str) -> list[ClusterMember]:
    """Returns the members, the new one included."""
    return _members(_call(target, "MemberAdd", wire.MemberAddRequest(peerURLs=[peer_url], isLearner=True)))


def promote(target: EtcdTarget, member: int) -> None:
    """Raises EtcdRefusal while the learner lags behind."""
    _call(target, "MemberPromote", wire.MemberIdRequest(ID=member))


def remove_member(target: EtcdTarget, member: int) -> None:
    _call(target, "MemberRemove", wire.MemberIdRequest(ID=member))


def _members(answer: Any) -> list[ClusterMember]:
    return [
        ClusterMember(each.ID, each.name, tuple(each.peerURLs), tuple(each.clientURLs), each.isLearner)
        for each in answer.members
    ]


def _call(target: EtcdTarget, method: str, request: Any) -> Any:
    """Asks the first endpoint that answers."""
    credentials = grpc.ssl_channel_credentials(
        Path(target.ca).read_bytes(), Path(target.key).read_bytes(), Path(target.cert).read_bytes()
    )
    last = "no endpoint"
    for url in target.endpoints:
        with grpc.secure_channel(url.partition("://")[2], credentials) as channel:
            send = channel.unary_unary(
                wire.path_of(method),
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=wire.response_class(method).FromString,
            )
            try:
                return send(request, timeout=MEMBER_CALL_S)
            except grpc.RpcError as error:
                last = f"{url}: {error.details()}"
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise EtcdRefusal(f"etcd at {last}") from error
    raise Unavailable(f"etcd: no endpoint answers ({last})")
