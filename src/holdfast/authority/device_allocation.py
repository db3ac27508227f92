"""Allocates devices and ports to a claim: deterministic, and never one that is in use. Pure.

- Whole devices: the lowest ids that are free and of a requested model.
- A share: the fullest device that it fits on, so that whole devices stay whole.
- Dynamic ports: in rotation, so that a released port is not reused at once.
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
from holdfast.model.template import Protocol, port_key, port_text


def allocate_devices(account: NodeAccount, request: ClaimRequest) -> tuple[DeviceClaim, ...] | Refused:
    """The devices of the claim: the named ones if they are free, else chosen ones; or a refusal."""
    milli = request.amounts.get(GPU, 0)
    if not milli and not request.devices:
        return ()
    if request.nominated:
        return ()  # its victims still own them; they are allocated at promotion
    if request.devices:
        return _named_devices(account, request, milli)
    fitting = [d for d in account.devices.values() if _matches(d, request)]
    if milli >= WHOLE_GPU_MILLI:
        count = milli // WHOLE_GPU_MILLI
        free = [d for d in fitting if d.milli == WHOLE_GPU_MILLI and d.id not in account.device_use]
        if len(free) < count or milli % WHOLE_GPU_MILLI:
            return _insufficient(account, fitting, request, count, len(free))
        return tuple(DeviceClaim(d.id, WHOLE_GPU_MILLI) for d in free[:count])
    candidates = [(account.free_milli(d), d.id) for d in fitting if account.free_milli(d) >= milli]
    if not candidates:
        return _insufficient(account, fitting, request, 1, 0)
    return (DeviceClaim(min(candidates)[1], milli),)


def _matches(device: Device, request: ClaimRequest) -> bool:
    return device.kind == GPU and (not request.gpu_models or device.model in request.gpu_models)


def _named_devices(account: NodeAccount, request: ClaimRequest, milli: int) -> tuple[DeviceClaim, ...] | Refused:
    shares = [d.milli for d in request.devices]
    whole = milli >= WHOLE_GPU_MILLI and all(s == WHOLE_GPU_MILLI for s in shares)
    if sum(shares) != milli or not (whole or len(shares) == 1) or len({d.id for d in request.devices}) != len(shares):
        return Refused(
            Reason.INSUFFICIENT_DEVICES,
            f"named devices have the wrong size (expected {milli}m GPU, found {sum(shares)}m); next: name no devices",
            {"node": account.name, "requestedMilli": milli, "namedMilli": sum(shares)},
        )
    for device_claim in request.devices:
        device = account.devices.get(device_claim.id)
        if device is None or not _matches(device, request):
            return Refused(
                Reason.INSUFFICIENT_DEVICES,
                f"node {account.name}: no device {device_claim.id} of a requested model",
                {"node": account.name, "device": device_claim.id, "models": list(request.gpu_models)},
            )
        if account.free_milli(device) < device_claim.milli:
            return Refused(
                Reason.DEVICE_IN_USE,
                f"node {account.name}: device {device_claim.id} is in use by {_first_owner(account, device_claim.id)}",
                {
                    "node": account.name,
                    "device": device_claim.id,
                    "owners": _owners(account, device_claim.id),
                    "freeMilli": account.free_milli(device),
                    **_winner(account, device_claim.id),
                },
            )
    return request.devices


def _insufficient(account: NodeAccount, fitting: list[Device], request: ClaimRequest, count: int, free: int) -> Refused:
    in_use = [d.id for d in fitting if d.id in account.device_use][: limits.REASON_EXAMPLES_MAX]
    return Refused(
        Reason.INSUFFICIENT_DEVICES,
        f"node {account.name}: too few free devices of a requested model (expected {count}, found {free})",
        {
            "node": account.name,
            "requested": count,
            "free": free,
            "models": list(request.gpu_models),
            "owners": {d: _owners(account, d) for d in in_use},
            **(_winner(account, in_use[0]) if in_use else {}),
        },
    )


def _owners(account: NodeAccount, device: str) -> list[str]:
    return sorted(account.device_use.get(device, {}))[: limits.REASON_EXAMPLES_MAX]


def _first_owner(account: NodeAccount, device: str) -> str:
    return next(iter(_owners(account, device)), "no claim, but is too small")


def _winner(account: NodeAccount, device: str) -> dict[str, Any]:
    owners = _owners(account, device)
    return {"winner": account.claims[owners[0]].facts()} if owners else {}


def allocate_ports(account: NodeAccount, request: ClaimRequest) -> dict[str, int] | Refused:
    """The ports of the claim: fixed ones if they are free, dynamic ones from the node's range; or a refusal."""
    if not request.ports:
        return {}
    allocated: dict[str, int] = {}
    taken: set[int] = set()
    """Keys of the allocated ports."""
    victims = {victim_key(request.namespace, victim) for victim in request.victims}
    for name, port in request.ports:
        if not port:
            continue
        key = port_key(port, Protocol.UDP if name in request.udp_ports else Protocol.TCP)
        owner = account.ports.get(key)
        if owner in victims:
            continue
        if owner is not None or key in taken:
            facts: dict[str, Any] = {"node": account.name, "port": port, "name": name}
            if owner is not None:
                facts["winner"] = account.claims[owner].facts()
            return Refused(
                Reason.PORT_IN_USE, f"node {account.name}: port {port_text(key)} is in use by {owner}", facts
            )
        allocated[name] = port
        taken.add(key)
    if request.nominated:
        return {}  # its victims still own some; they are allocated at promotion
    low, high = account.port_range
    cursor = account.port_cursor
    remaining = high - low + 1
    for name, port in request.ports:
        if port:
            continue
        while remaining > 0:
            candidate = low + (cursor - low) % (high - low + 1)
            cursor, remaining = candidate + 1, remaining - 1
            if _is_unused(account, candidate) and candidate not in allocated.values():
                allocated[name] = candidate
                break
        else:
            return Refused(
                Reason.PORTS_EXHAUSTED,
                f"node {account.name}: no free port between {low} and {high}",
                {"node": account.name, "portRange": [low, high], "taken": len(account.ports)},
            )
    return allocated


def _is_unused(account: NodeAccount, number: int) -> bool:
    """Whether no claim has this port number, for whichever protocol. Dynamic ports take only such numbers."""
    return not any(port_key(number, protocol) in account.ports for protocol in Protocol)
