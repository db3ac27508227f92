"""Which devices and which ports a claim gets: deterministic, and never one that has an owner. Pure.

Whole devices: the lowest ids that are wholly free and of a wanted model. A share: the fullest device it still fits on,
so that whole ones stay whole. Free ports are handed out in rotation, so that one just given back is not reused at once.
"""

from __future__ import annotations

from typing import Any

from holdfast.authority.claims import ClaimRequest, victim_key
from holdfast.authority.node_account import NodeAccount
from holdfast.model import limits
from holdfast.model.binding import DeviceClaim
from holdfast.model.errors import Refused
from holdfast.model.node import Device
from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI
from holdfast.model.reasons import Reason


def allocate_devices(account: NodeAccount, want: ClaimRequest) -> tuple[DeviceClaim, ...] | Refused:
    """The devices for this request: the ones it names if they are free, or a choice."""
    milli = want.amounts.get(GPU, 0)
    if not milli and not want.devices:
        return ()
    if want.nominated:
        return ()  # its victims still own them; they are chosen when it becomes firm
    if want.devices:
        return _named(account, want, milli)
    fitting = [d for d in account.devices.values() if _wanted(d, want)]
    if milli >= WHOLE_GPU_MILLI:
        count = milli // WHOLE_GPU_MILLI
        free = [d for d in fitting if d.milli == WHOLE_GPU_MILLI and d.id not in account.device_use]
        if len(free) < count or milli % WHOLE_GPU_MILLI:
            return _too_few(account, fitting, want, count, len(free))
        return tuple(DeviceClaim(d.id, WHOLE_GPU_MILLI) for d in free[:count])
    room = [(account.free_milli(d), d.id) for d in fitting if account.free_milli(d) >= milli]
    if not room:
        return _too_few(account, fitting, want, 1, 0)
    return (DeviceClaim(min(room)[1], milli),)


def _wanted(device: Device, want: ClaimRequest) -> bool:
    return device.kind == GPU and (not want.gpu_models or device.model in want.gpu_models)


def _named(account: NodeAccount, want: ClaimRequest, milli: int) -> tuple[DeviceClaim, ...] | Refused:
    shares = [d.milli for d in want.devices]
    whole = milli >= WHOLE_GPU_MILLI and all(s == WHOLE_GPU_MILLI for s in shares)
    if sum(shares) != milli or not (whole or len(shares) == 1) or len({d.id for d in want.devices}) != len(shares):
        return Refused(
            Reason.INSUFFICIENT_DEVICES,
            f"the named devices come to {sum(shares)}m, the replica asks for {milli}m of GPU; or name none",
            {"node": account.name, "wantedMilli": milli, "namedMilli": sum(shares)},
        )
    for named in want.devices:
        device = account.devices.get(named.id)
        if device is None or not _wanted(device, want):
            return Refused(
                Reason.INSUFFICIENT_DEVICES,
                f"node {account.name} has no device {named.id} of a wanted model",
                {"node": account.name, "device": named.id, "models": list(want.gpu_models)},
            )
        if account.free_milli(device) < named.milli:
            return Refused(
                Reason.DEVICE_IN_USE,
                f"device {named.id} on node {account.name} is taken by {_first_owner(account, named.id)}",
                {"node": account.name, "device": named.id, "owners": _owners(account, named.id),
                 "freeMilli": account.free_milli(device), **_winner(account, named.id)},
            )  # fmt: skip
    return want.devices


def _too_few(account: NodeAccount, fitting: list[Device], want: ClaimRequest, count: int, free: int) -> Refused:
    taken = [d.id for d in fitting if d.id in account.device_use][: limits.REASON_EXAMPLES_MAX]
    return Refused(
        Reason.INSUFFICIENT_DEVICES,
        f"node {account.name} has {free} free devices of the wanted model, {count} are needed",
        {"node": account.name, "wanted": count, "free": free, "models": list(want.gpu_models),
         "owners": {d: _owners(account, d) for d in taken}, **(_winner(account, taken[0]) if taken else {})},
    )  # fmt: skip


def _owners(account: NodeAccount, device: str) -> list[str]:
    return sorted(account.device_use.get(device, {}))[: limits.REASON_EXAMPLES_MAX]


def _first_owner(account: NodeAccount, device: str) -> str:
    return next(iter(_owners(account, device)), "nobody, but is too small")


def _winner(account: NodeAccount, device: str) -> dict[str, Any]:
    owners = _owners(account, device)
    return {"winner": account.claims[owners[0]].facts()} if owners else {}


def allocate_ports(account: NodeAccount, want: ClaimRequest) -> dict[str, int] | Refused:
    """Fixed ports as asked for if they are free; the others from the node's range."""
    if not want.ports:
        return {}
    given: dict[str, int] = {}
    leaving = {victim_key(want.namespace, victim) for victim in want.victims}
    for name, port in want.ports:
        if not port:
            continue
        owner = account.ports.get(port)
        if owner in leaving:
            continue
        if owner is not None or port in given.values():
            facts: dict[str, Any] = {"node": account.name, "port": port, "name": name}
            if owner is not None:
                facts["winner"] = account.claims[owner].facts()
            return Refused(Reason.PORT_IN_USE, f"port {port} on node {account.name} is taken by {owner}", facts)
        given[name] = port
    if want.nominated:
        return {}  # its victims still own some; they are given out when it becomes firm
    low, high = account.port_range
    at = account.port_cursor
    left = high - low + 1
    for name, port in want.ports:
        if port:
            continue
        while left > 0:
            candidate = low + (at - low) % (high - low + 1)
            at, left = candidate + 1, left - 1
            if candidate not in account.ports and candidate not in given.values():
                given[name] = candidate
                break
        else:
            return Refused(
                Reason.PORTS_EXHAUSTED,
                f"node {account.name} has no free port left between {low} and {high}",
                {"node": account.name, "portRange": [low, high], "taken": len(account.ports)},
            )
    return given
