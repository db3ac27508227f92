"""State that the authority reads: the cell's published objects, and its own ledger and lease book.

Reads are synchronous and from one published state, so a check and its transaction see the same state. `now()` never
goes back, whatever the wall clock does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from holdfast.authority.claims import Claim, claim_from_records, hold_of
from holdfast.authority.grant_leases import GrantLeases
from holdfast.authority.lease_book import LeaseBook
from holdfast.authority.ledger import Ledger, rebuild_ledger
from holdfast.authority.spread_domains import DomainCache
from holdfast.authority.stop_orders import lost_claim, volume_names
from holdfast.foundation.ports import Ports
from holdfast.model import limits, tenure
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Reservation, replica_of_claim
from holdfast.model.core import Lease
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import Kind, kind_of
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import Object
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.placement_eligibility import can_use_slots
from holdfast.model.quantity import Amounts
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.volume import Volume
from holdfast.store.objects import Objects

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

NODE = kind_of(Node)
REPLICA = kind_of(Replica)
RESERVATION = kind_of(Reservation)
BINDING = kind_of(Binding)
GRANT_COPY = kind_of(GrantCopy)
ASSIGNMENT = kind_of(Assignment)
HOLD = kind_of(RecoverySlot)
LEASE = kind_of(Lease)
LEASE_PAGE = kind_of(LeasePage)
BUDGET = kind_of(RecoveryBudget)
VOLUME = kind_of(Volume)


class AuthorityState:
    def __init__(self, region: str, objects: Objects, ports: Ports, leases: LeaseBook) -> None:
        self.region = region
        self.objects = objects
        self.ports = ports
        self.leases = leases
        self.ledger = Ledger()
        self.domains = DomainCache(objects)
        self.inherited_tenure_revision = 0
        """Revision of the tenure that existed when this authority started. Its age is unknown, because the wall clock
        may have been set back meanwhile."""
        self._grant_leases = GrantLeases()
        self._tenure_until: tuple[str | None, float] = (None, 0.0)
        """The last observed renewal, and its expiry on the monotonic clock."""
        self._last_s = 0.0
        self._last_monotonic_s = 0.0
        self.annotate: Callable[[Replica], dict[str, str]] | None = None
        """Annotations of a new Binding: the trace context, while traces are exported."""

    def trace_annotations(self, replica: Replica) -> dict[str, str]:
        return self.annotate(replica) if self.annotate is not None else {}

    def load(self) -> None:
        """Rebuilds everything from the stored objects."""
        self.ledger = self.rebuilt_ledger()
        inherited: Lease | None = self.get(LEASE, tenure.NAMESPACE, tenure.NAME)
        self.inherited_tenure_revision = inherited.revision if inherited is not None else 0
        pages = list(self.list_all(LeasePage))
        for page in pages:
            for lease in page.spec.leases.values():
                self._last_s = max(self._last_s, lease.renewed_at_s)
        self._last_monotonic_s = self.ports.clock.monotonic()
        self.leases.load(pages, self.now(), self._last_monotonic_s)
        self._grant_leases = GrantLeases()
        self._grant_leases.observe(self.list_all(GrantCopy), self.now(), self._last_monotonic_s)

    def rebuilt_ledger(self) -> Ledger:
        """The ledger of the published objects."""
        return rebuild_ledger(
            self.list_all(Node),
            self.list_all(RecoverySlot),
            self.list_all(Reservation),
            self.list_all(Binding),
            volumes=self.list_all(Volume),
            replicas=self.list_all(Replica),
        )

    def now(self) -> float:
        """The wall clock; if it was set back, the last returned time plus elapsed monotonic time."""
        monotonic_s = self.ports.clock.monotonic()
        elapsed_s = max(0.0, monotonic_s - self._last_monotonic_s)
        self._last_s = max(self.ports.clock.now(), self._last_s + elapsed_s)
        self._last_monotonic_s = monotonic_s
        return self._last_s

    def observe_grants(self) -> None:
        """Records grant renewals, dated by the present wall clock."""
        clock = self.ports.clock
        self._grant_leases.observe(self.list_all(GrantCopy), clock.now(), clock.monotonic())

    def grant_age_s(self, copy: GrantCopy) -> float:
        """Time since the last contact with the global cell that this GrantCopy records."""
        clock = self.ports.clock
        return self._grant_leases.age_s(copy, clock.now(), clock.monotonic())

    def tenure_left_s(self, lease: Lease) -> float:
        """Remaining time of the region's tenure. The wall clock is read once per renewal. A renewal dated in the future
        was written before the clock was set back, and does not count."""
        clock = self.ports.clock
        if self._tenure_until[0] != lease.spec.renew_time:
            remaining_s = tenure.remaining_s(lease, clock.now())
            credible = remaining_s <= limits.TENURE_S + limits.TENURE_STEP_MAX_S
            until_s = clock.monotonic() + min(remaining_s, limits.TENURE_S) if credible else 0.0
            self._tenure_until = (lease.spec.renew_time, until_s)
        return self._tenure_until[1] - clock.monotonic()

    def get(self, kind: Kind, namespace: str, name: str) -> Any:
        return self.objects.get(kind, namespace, name)

    def list_all(self, kind: type[O], namespace: str = "") -> Iterable[O]:
        return cast("list[O]", self.objects.list(kind_of(kind), namespace)[0])

    def node(self, name: str) -> Node | None:
        return cast("Node | None", self.objects.get(NODE, "", name))

    def replica(self, namespace: str, name: str) -> Replica | None:
        return cast("Replica | None", self.objects.get(REPLICA, namespace, name))

    def reservation(self, namespace: str, name: str) -> Reservation | None:
        return cast("Reservation | None", self.objects.get(RESERVATION, namespace, name))

    def binding(self, namespace: str, name: str) -> Binding | None:
        return cast("Binding | None", self.objects.get(BINDING, namespace, name))

    def tenant(self, name: str) -> Tenant | None:
        return cast("Tenant | None", self.objects.get(kind_of(Tenant), "", name))

    def this_region(self) -> Region | None:
        return cast("Region | None", self.objects.get(kind_of(Region), "", self.region))

    def overrides(self) -> Iterable[Override]:
        return self.list_all(Override)

    def recorded_claim(self, namespace: str, name: str) -> Claim | None:
        """The claim of the published Reservation and Binding of this name. If the store has
        lost the Binding that the replica names, the claim is read from the replica."""
        reservation, binding = self.reservation(namespace, name), self.binding(namespace, name)
        replica = self.replica(namespace, replica_of_claim(name)) if binding is None else None
        if replica is not None and replica.status.placement.binding == name:
            return lost_claim(replica, reservation, self.volumes_of(replica))
        return claim_from_records(reservation, binding)

    def volumes_of(self, replica: Replica) -> list[Volume]:
        """The replica's Volumes that exist."""
        found = (self.get(VOLUME, replica.metadata.namespace, name) for name in volume_names(replica))
        return [volume for volume in found if volume is not None]

    def reload_claim(self, namespace: str, name: str) -> None:
        """Updates the ledger after another writer removed objects of a claim."""
        claim = self.recorded_claim(namespace, name)
        if claim is None:
            self.ledger.drop(f"{namespace}/{name}")
        else:
            self.ledger.put(claim)

    def reload_volume(self, namespace: str, name: str) -> None:
        """Updates the ledger after a Volume was removed."""
        volume: Volume | None = self.get(VOLUME, namespace, name)
        if volume is None:
            self.ledger.drop_volume(f"{namespace}/{name}")
        else:
            self.ledger.put_volume(hold_of(volume))

    def reload_slots(self, node: str, in_flight: Mapping[str, Amounts]) -> None:
        """Reloads the recovery slots of a node, and adds those of commits in flight."""
        lease = self.objects.list(HOLD, fields={"node": node})[0]
        self.ledger.set_slots(node, cast("list[RecoverySlot]", lease))
        for name, amounts in in_flight.items():
            self.ledger.put_slot(node, name, amounts)

    def slots_for_tenant(self, node: str, tenant: str) -> list[str]:
        """Admitted recovery slots on a node that the tenant may consume."""
        allowed, dedicated = [], is_dedicated(self.tenant(tenant))
        for slot in cast("list[RecoverySlot]", self.objects.list(HOLD, fields={"node": node})[0]):
            budget = cast("RecoveryBudget | None", self.objects.get(BUDGET, "", slot.spec.budget))
            if (
                budget is not None
                and can_use_slots(budget.spec.tenants, tenant, dedicated=dedicated)
                and is_admitted(slot)
            ):
                allowed.append(slot.metadata.name)
        return allowed
