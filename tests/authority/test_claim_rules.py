"""The authority's pure rules as tables: room on a node, devices, ports, recovery slots, provisional terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.test_ledger import make_node
from tests.factories import replica

from holdfast.authority.claims import Claim, ClaimRequest
from holdfast.authority.device_allocation import allocate_devices, allocate_ports
from holdfast.authority.ledger import Ledger
from holdfast.authority.node_account import NodeAccount
from holdfast.authority.provisional import PROVISIONAL_RUN_S, ProvisionalRequest, next_run_until, provisional_terms
from holdfast.model import limits
from holdfast.model.binding import CapacityClass, DeviceClaim
from holdfast.model.errors import Refused
from holdfast.model.grant_limit import SpendingLimit
from holdfast.model.node import Device
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PartitionMode
from holdfast.model.times import micro_text
from holdfast.model.workload import Exclusivity

replace = msgspec.structs.replace
FIRM, RECLAIMABLE, RECOVERY = CapacityClass.FIRM, CapacityClass.RECLAIMABLE, CapacityClass.RECOVERY
NOW_S = 1_790_000_000.0


def claim(name: str = "old", cpu: int = 0, kind: CapacityClass = FIRM, **more: Any) -> Claim:
    amounts = more.pop("amounts", {"cpu": cpu} if cpu else {})
    return Claim(f"a/{name}", "a", name, name, f"u-{name}", 1, "n1", amounts, kind, **more)


def request(cpu: int = 0, kind: CapacityClass = FIRM, **more: Any) -> ClaimRequest:
    amounts = more.pop("amounts", {"cpu": cpu} if cpu else {})
    return ClaimRequest("a", "new", "new", "u-new", 1, amounts, kind, **more)


def account(*claims: Claim, cpu: int = 10, gpus: int = 0, slots: dict[str, int] | None = None) -> NodeAccount:
    """A node of 10 thousandths of a CPU with these claims and recovery slots."""
    ledger = Ledger()
    found = ledger.account_for(make_node("n1", 1, cpu, gpus))
    for item in claims:
        ledger.put(item)
    found.recovery_slots = {name: {"cpu": size} for name, size in (slots or {}).items()}
    return found


# Room


@pytest.mark.parametrize(
    ("held", "slots", "asked", "short"),
    [
        pytest.param([], {}, request(10), 0, id="all of it"),
        pytest.param([], {}, request(11), 1, id="one too much"),
        pytest.param([claim(cpu=4)], {}, request(7), 1, id="beside a firm claim"),
        pytest.param([claim(cpu=4, kind=RECLAIMABLE)], {}, request(7), 1, id="beside a reclaimable claim"),
        pytest.param([claim(cpu=4, kind=RECOVERY)], {}, request(7), 1, id="beside a recovery claim"),
        pytest.param([claim(cpu=4, nominated=True)], {}, request(7), 1, id="beside a nomination"),
        pytest.param([], {"s": 4}, request(7), 1, id="a slot is kept from firm work"),
        pytest.param([], {"s": 4}, request(10, RECLAIMABLE), 0, id="and not from reclaimable work"),
        pytest.param([], {"s": 4}, request(7, RECOVERY), 1, id="and from recovery work that does not consume it"),
        pytest.param([], {"s": 4}, request(10, RECOVERY, recovery_slots=("s",)), 0, id="recovery work consumes it"),
        pytest.param([], {"s": 4}, request(7, FIRM, recovery_slots=("s",)), 1, id="firm work does not"),
        pytest.param([claim(cpu=4, recovery_slots=("s",))], {"s": 4}, request(6), 0, id="a consumed slot is free"),
        pytest.param(
            [claim(cpu=6)],
            {},
            request(6, victims=("a/old",), nominated=True),
            0,
            id="a nomination for its victim's room",
        ),
        pytest.param([claim(cpu=6)], {}, request(6, victims=("old",), nominated=True), 0, id="a victim of its tenant"),
        pytest.param([claim(cpu=6)], {}, request(6, victims=("a/old",)), 2, id="not before the victim has gone"),
        pytest.param(
            [claim(cpu=6, nominated=True)], {}, request(6, victims=("a/old",)), 2, id="a nomination is no victim"
        ),
        pytest.param(
            [claim(cpu=6), claim("waits", 6, nominated=True, victims=("old",))],
            {},
            request(4),
            0,
            id="room that both leave",
        ),
        pytest.param(
            [claim(cpu=6), claim("waits", 6, nominated=True, victims=("old",))],
            {},
            request(5),
            1,
            id="no more than that",
        ),
        pytest.param(
            [claim(cpu=6, kind=RECLAIMABLE)],
            {"s": 8},
            request(4, victims=("old",), nominated=True),
            2,
            id="a reclaimable victim leaves no firm room",
        ),
        pytest.param([claim(cpu=8)], {}, request(0, amounts={"gpu": 0}), 0, id="nothing asked for"),
    ],
)
def test_claim_fits_by_the_capacity_rule(
    held: list[Claim], slots: dict[str, int], asked: ClaimRequest, short: int
) -> None:
    assert account(*held, slots=slots).shortage(asked) == ({"cpu": short} if short else {})


@pytest.mark.parametrize(
    ("cpu", "over"), [(9, 0), (8, 0), (7, 1)], ids=["room is left", "full", "the node shrank below its claims"]
)
def test_node_is_overcommitted_by_what_its_claims_exceed(cpu: int, over: int) -> None:
    found = account(claim(cpu=5), claim("two", 3, RECLAIMABLE), cpu=cpu).overcommitted()
    assert found == ({"cpu": over} if over else {})


@pytest.mark.parametrize(
    ("held", "slots", "more", "short"),
    [
        ([], {}, 10, 0),
        ([], {}, 11, 1),
        ([claim(cpu=4)], {}, 7, 1),
        ([claim(cpu=4, kind=RECLAIMABLE)], {}, 10, 0),
        ([claim(cpu=4, nominated=True)], {}, 7, 1),
        ([claim(cpu=4), claim("waits", 4, nominated=True, victims=("old",))], {}, 6, 0),
        ([], {"s": 4}, 7, 1),
    ],
)
def test_slot_fits_beside_firm_work_and_other_slots(
    held: list[Claim], slots: dict[str, int], more: int, short: int
) -> None:
    assert account(*held, slots=slots).slot_shortage({"cpu": more}) == ({"cpu": short} if short else {})


@pytest.mark.parametrize(
    ("held", "slots", "allowed", "cpu", "chosen"),
    [
        ([], {}, (), 4, ()),
        ([], {"s": 4}, (), 4, ()),
        ([], {"s": 4}, ("s",), 4, ("s",)),
        ([], {"big": 6, "small": 4}, ("big", "small"), 4, ("small",)),
        ([], {"b": 4, "a": 4}, ("a", "b"), 4, ("a",)),
        ([claim(recovery_slots=("s",))], {"s": 4, "t": 5}, ("s", "t"), 4, ("t",)),
        ([], {"s": 2, "t": 3, "u": 1}, ("s", "t", "u"), 5, ("t",)),
        ([], {"s": 4, "t": 5}, ("s", "t"), 10, ("t", "s")),
        ([], {"s": 2, "gone": 9}, ("s", "other"), 10, ("s",)),
    ],
)
def test_recovery_claim_consumes_the_smallest_slot_that_covers_it_or_few(
    held: list[Claim], slots: dict[str, int], allowed: tuple[str, ...], cpu: int, chosen: tuple[str, ...]
) -> None:
    assert account(*held, slots=slots).choose_slots(request(cpu, RECOVERY), allowed) == chosen


# Devices


def gpu(milli: int, **more: Any) -> ClaimRequest:
    return request(amounts={"gpu": milli} if milli else {}, **more)


def owner(device: str, milli: int = 1000, name: str = "old") -> Claim:
    return claim(name, amounts={"gpu": milli}, devices=(DeviceClaim(device, milli),))


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [
        pytest.param([], gpu(0), (), id="none"),
        pytest.param([], gpu(2000), ("g0", "g1"), id="the lowest free ones"),
        pytest.param([owner("g0")], gpu(1000), ("g1",), id="not one in use"),
        pytest.param([owner("g0", 1)], gpu(1000), ("g1",), id="not one that is shared"),
        pytest.param([owner("g0")], gpu(3000), None, id="too many"),
        pytest.param([], gpu(1500), None, id="no whole number"),
        pytest.param([owner("g1", 300)], gpu(500), ("g1",), id="a share on the fullest device"),
        pytest.param([owner("g1", 600)], gpu(500), ("g0",), id="that it fits on"),
        pytest.param([owner("g0", 500)], gpu(500), ("g0",), id="that it fills"),
        pytest.param([owner(f"g{n}", 900, f"o{n}") for n in range(3)], gpu(500), None, id="no room for a share"),
        pytest.param([], gpu(1000, nominated=True, victims=("old",)), (), id="a nomination has none yet"),
        pytest.param([], gpu(1000, gpu_models=("other",)), None, id="no such model"),
        pytest.param([], gpu(1000, devices=(DeviceClaim("g2", 1000),)), ("g2",), id="the named one"),
        pytest.param([owner("g2")], gpu(1000, devices=(DeviceClaim("g2", 1000),)), None, id="the named one is in use"),
        pytest.param(
            [owner("g2", 500)], gpu(500, devices=(DeviceClaim("g2", 500),)), ("g2",), id="half of a named one"
        ),
        pytest.param([], gpu(1000, devices=(DeviceClaim("g9", 1000),)), None, id="a named one that is not there"),
        pytest.param([], gpu(1000, devices=(DeviceClaim("g0", 500),)), None, id="named ones of another size"),
        pytest.param(
            [],
            gpu(1000, devices=(DeviceClaim("g0", 500), DeviceClaim("g1", 500))),
            None,
            id="a whole one in two shares",
        ),
        pytest.param(
            [], gpu(2000, devices=(DeviceClaim("g0", 1000), DeviceClaim("g0", 1000))), None, id="one named twice"
        ),
        pytest.param([], gpu(0, devices=(DeviceClaim("g0", 1000),)), None, id="named and not asked for"),
        pytest.param(
            [], gpu(2000, devices=(DeviceClaim("g2", 1000), DeviceClaim("g0", 1000))), ("g2", "g0"), id="two named ones"
        ),
    ],
)
def test_devices_of_a_claim(held: list[Claim], asked: ClaimRequest, expected: tuple[str, ...] | None) -> None:
    found = allocate_devices(account(*held, gpus=3), asked)
    assert (None if isinstance(found, Refused) else tuple(d.id for d in found)) == expected
    milli = asked.amounts.get("gpu", 0)
    if not isinstance(found, Refused) and found:
        assert [d.milli for d in found] == [1000] * len(found) if milli >= 1000 else [d.milli for d in found] == [milli]


def test_refused_device_names_its_owners_and_the_winner() -> None:
    held = account(owner("g0", 700), owner("g0", 300, "two"), gpus=1)
    named = allocate_devices(held, gpu(300, devices=(DeviceClaim("g0", 300),)))
    assert isinstance(named, Refused) and named.reason is Reason.DEVICE_IN_USE
    assert (named.facts["owners"], named.facts["freeMilli"]) == (["a/old", "a/two"], 0)
    assert named.facts["winner"]["claim"] == "a/old"
    few = allocate_devices(held, gpu(1000))
    assert isinstance(few, Refused) and few.reason is Reason.INSUFFICIENT_DEVICES
    assert (few.facts["requested"], few.facts["free"], few.facts["owners"]) == (1, 0, {"g0": ["a/old", "a/two"]})
    assert few.facts["winner"]["claim"] == "a/old"
    none = allocate_devices(account(), gpu(1000))
    assert isinstance(none, Refused) and "winner" not in none.facts and none.facts["owners"] == {}


def test_shared_and_foreign_devices_are_not_whole_gpus() -> None:
    found = account(gpus=1)
    found.devices = {
        "f": Device("f", kind="fpga"),
        "half": Device("half", milli=500),
        "big": Device("big", model="h100"),
    }
    assert allocate_devices(found, gpu(1000)) == (DeviceClaim("big", 1000),)
    assert allocate_devices(found, gpu(400)) == (DeviceClaim("half", 400),)
    assert allocate_devices(found, gpu(400, gpu_models=("h100",))) == (DeviceClaim("big", 400),)


# Ports


@pytest.mark.parametrize(
    ("held", "ports", "more", "expected"),
    [
        pytest.param([], (), {}, {}, id="none"),
        pytest.param([], (("web", 80),), {}, {"web": 80}, id="a fixed one"),
        pytest.param([claim(ports={"x": 80})], (("web", 80),), {}, None, id="in use"),
        pytest.param(
            [claim(ports={"x": 80})], (("dns", 80),), {"udp_ports": ("dns",)}, {"dns": 80}, id="of another protocol"
        ),
        pytest.param(
            [claim(ports={"x": 80}, udp_ports=("x",))], (("dns", 80),), {"udp_ports": ("dns",)}, None, id="UDP in use"
        ),
        pytest.param([], (("a", 80), ("b", 80)), {}, None, id="twice in one claim"),
        pytest.param([], (("a", 80), ("b", 80)), {"udp_ports": ("b",)}, {"a": 80, "b": 80}, id="twice, by protocol"),
        pytest.param([], (("a", 0), ("b", 0)), {}, {"a": 3000, "b": 3001}, id="dynamic ones"),
        pytest.param([], (("a", 0), ("b", 3000)), {}, {"b": 3000, "a": 3001}, id="dynamic beside fixed"),
        pytest.param([claim(ports={"x": 3001})], (("a", 0),), {}, {"a": 3002}, id="in rotation"),
        pytest.param([claim(ports={"x": 3004})], (("a", 0),), {}, {"a": 3000}, id="from the start again"),
        pytest.param([claim(ports={"x": 3000}, udp_ports=("x",))], (("a", 0),), {}, {"a": 3001}, id="no number in use"),
        pytest.param(
            [claim(ports={f"x{n}": n for n in range(3000, 3004)})], (("a", 0),), {}, {"a": 3004}, id="the last one"
        ),
        pytest.param([claim(ports={f"x{n}": n for n in range(3000, 3005)})], (("a", 0),), {}, None, id="exhausted"),
        pytest.param([], tuple((f"p{n}", 0) for n in range(6)), {}, None, id="more than the range has"),
        pytest.param(
            [claim(ports={"x": 80})], (("web", 80), ("a", 81)), {"victims": ("old",)}, {"a": 81}, id="a victim's port"
        ),
        pytest.param([], (("web", 80), ("a", 0)), {"nominated": True}, {}, id="a nomination has none yet"),
        pytest.param([claim(ports={"x": 80})], (("web", 80),), {"nominated": True}, None, id="and needs a free one"),
    ],
)
def test_ports_of_a_claim(
    held: list[Claim], ports: tuple[tuple[str, int], ...], more: dict[str, Any], expected: dict[str, int] | None
) -> None:
    found = allocate_ports(account(*held), request(ports=ports, **more))
    assert (None if isinstance(found, Refused) else found) == expected


def test_refused_port_names_its_owner() -> None:
    found = allocate_ports(account(claim(ports={"x": 80})), request(ports=(("web", 80),)))
    assert isinstance(found, Refused) and found.reason is Reason.PORT_IN_USE
    assert (found.facts["port"], found.facts["name"], found.facts["winner"]["claim"]) == (80, "web", "a/old")
    twice = allocate_ports(account(), request(ports=(("a", 80), ("b", 80))))
    assert isinstance(twice, Refused) and "winner" not in twice.facts
    full = allocate_ports(account(claim(ports={f"x{n}": n for n in range(3000, 3005)})), request(ports=(("a", 0),)))
    assert isinstance(full, Refused) and full.reason is Reason.PORTS_EXHAUSTED
    assert full.facts == {"node": "n1", "portRange": [3000, 3004], "taken": 5}


# Provisional work

EXPIRED = Refused(Reason.GRANT_EXPIRED, "expired", {"tenant": "a"})
SHARE = SpendingLimit({}, {"cpu": 8}, ("normal",), ("normal",), {"cpu": 3}, {"cpu": 8}, NOW_S - 100.0)
WORK = replica(0)


def proposal(claim_request: ClaimRequest | None = None, **spec: Any) -> ProvisionalRequest:
    item = replace(WORK, spec=replace(WORK.spec, **spec))
    return ProvisionalRequest(item, claim_request or request(1, RECLAIMABLE), binds_at_once=True, assigned=True)


@pytest.mark.parametrize(
    ("asked", "limit", "says"),
    [
        (replace(proposal(), assigned=False), SHARE, "its assignment is not known here"),
        (proposal(exclusive=Exclusivity()), SHARE, "exclusive work waits"),
        (proposal(placement=PlacementRules(residency=("eu",))), SHARE, "work with residency eu waits"),
        (proposal(request(1, FIRM)), SHARE, "not reclaimable"),
        (proposal(request(1, RECOVERY)), SHARE, "not reclaimable"),
        (proposal(request(1, RECLAIMABLE, victims=("x",))), SHARE, "it would preempt"),
        (proposal(request(1, RECLAIMABLE, recovery_slots=("s",))), SHARE, "it would preempt"),
        (replace(proposal(), binds_at_once=False), SHARE, "it cannot be bound at once"),
        (proposal(), replace(SHARE, provisional={}), "no provisional quota"),
        (proposal(), replace(SHARE, last_contact_s=NOW_S - limits.PROVISIONAL_MAX_S), "partitioned for longer than"),
    ],
)
def test_work_that_may_not_be_provisional_is_refused(
    asked: ProvisionalRequest, limit: SpendingLimit, says: str
) -> None:
    found = provisional_terms(PartitionMode.PROVISIONAL, asked, limit, NOW_S, EXPIRED)
    assert isinstance(found, Refused) and found.reason is Reason.NOT_ALLOWED_WHILE_PARTITIONED
    assert says in found.message and found.facts["tenant"] == "a"
    assert provisional_terms(PartitionMode.WAIT, asked, limit, NOW_S, EXPIRED) is EXPIRED


@pytest.mark.parametrize(("silent_s", "left_s"), [(100.0, PROVISIONAL_RUN_S), (limits.PROVISIONAL_MAX_S - 50.0, 50.0)])
def test_provisional_work_runs_for_its_term_and_not_beyond_the_partition_s_maximum(
    silent_s: float, left_s: float
) -> None:
    limit = replace(SHARE, last_contact_s=NOW_S - silent_s)
    found = provisional_terms(PartitionMode.PROVISIONAL, proposal(), limit, NOW_S, EXPIRED)
    assert found == micro_text(NOW_S + left_s)


@pytest.mark.parametrize(
    ("used", "spendable", "expected"), [(4, 8, ""), (5, 8, None), (5, 9, "")], ids=["fills it", "too much", "room"]
)
def test_provisional_claim_is_confirmed_if_a_live_grant_covers_it(
    used: int, spendable: int, expected: str | None
) -> None:
    ledger = Ledger()
    held = claim("mine", 4, RECLAIMABLE, bound=True, run_until=micro_text(NOW_S + 100.0))
    ledger.put(held)
    ledger.put(claim("other", used, bound=True))
    live = SpendingLimit({"cpu": spendable}, {"cpu": spendable}, ("normal",))
    assert next_run_until(held, ledger, live, PartitionMode.PROVISIONAL, NOW_S) == expected


@pytest.mark.parametrize(
    ("left_s", "silent_s", "renewed_s"),
    [
        (PROVISIONAL_RUN_S / 2 - 1.0, 100.0, PROVISIONAL_RUN_S),
        (PROVISIONAL_RUN_S / 2, 100.0, None),
        (0.0, 100.0, None),
        (0.5, 100.0, PROVISIONAL_RUN_S),
        (100.0, limits.PROVISIONAL_MAX_S - 101.0, None),
        (100.0, limits.PROVISIONAL_MAX_S - 102.0, 102.0),
    ],
)
def test_provisional_claim_is_renewed_at_half_of_its_term(
    left_s: float, silent_s: float, renewed_s: float | None
) -> None:
    held = claim("mine", 4, RECLAIMABLE, bound=True, run_until=micro_text(NOW_S + left_s))
    limit = replace(SHARE, last_contact_s=NOW_S - silent_s)
    found = next_run_until(held, Ledger(), limit, PartitionMode.PROVISIONAL, NOW_S)
    assert found == (micro_text(NOW_S + renewed_s) if renewed_s is not None else None)
    assert next_run_until(held, Ledger(), limit, PartitionMode.WAIT, NOW_S) is None
