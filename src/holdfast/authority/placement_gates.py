"""Hard rules of the workload at the commit point: node labels, taints, affinity and spread (S4).

- The predicates are those of `model/placement_eligibility`, which the planner uses too: on unchanged state the
  authority accepts what the planner proposes. The active policy decides which rules apply, as in the planner.
- A required neighbour must stay: the transaction compares its record, or waits for its commit in flight.
- Spread counts claims in flight. It is checked at the reserve, which is when a claim begins to count.
- Filter expressions of a policy are the planner's. With any, spread is left to the planner, because they change which
  domains count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from holdfast.authority.claims import Claim, claim_key, victim_key
from holdfast.authority.placement_checks import replica_stays_until_s
from holdfast.authority.spread_domains import Domains
from holdfast.authority.state import BINDING, RESERVATION, AuthorityState
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.binding import DesiredRunState
from holdfast.model.errors import Refused
from holdfast.model.host_paths import host_path_needs, refused_host_path
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import Override, avoidance_of, has_begun_by, is_in_scope
from holdfast.model.placement_eligibility import Labels, NeighbourSelector
from holdfast.model.placement_rules import (
    AffinityRule,
    PlacementRules,
    SpreadRule,
    Taint,
    Toleration,
    required_affinity,
    required_anti_affinity,
)
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import FilterName, PolicyRules
from holdfast.model.template import required_driver
from holdfast.model.tenant import is_dedicated


class RelianceOnClaims(msgspec.Struct, frozen=True):
    """What an accepted placement relies on: `compares` records of neighbours, `in_flight` their uncommitted claims."""

    compares: dict[str, int] = {}
    in_flight: tuple[str, ...] = ()
    reads_claims: bool = False


NO_RELIANCE = RelianceOnClaims()


class PlacementGates:
    """The gates during one round."""

    def __init__(
        self, state: AuthorityState, rules: Callable[[], PolicyRules], avoidances: Iterable[Override], now: float
    ) -> None:
        self._state = state
        self._read_rules = rules
        self._avoidances = list(avoidances)
        self._now = now

    def check(
        self, replica: Replica, node: Node, victims: Iterable[str] = (), *, new_claim: bool
    ) -> Refused | RelianceOnClaims:
        """Why the replica's rules forbid the node, or what the placement relies on. `victims` of the claim will leave.
        `new_claim`: the replica has no claim yet."""
        placement, namespace = replica.spec.placement, replica.metadata.namespace
        guarded = self._state.ledger.neighbours.has_guards(namespace)
        about_labels = placement.node_selector or placement.expressions or placement.node_terms
        has_rules = about_labels or placement.affinity or placement.spread
        if not has_rules and not node.spec.taints and not guarded:
            return NO_RELIANCE
        rules = self._read_rules()
        refused = self._node_refusal(replica, node, rules)
        if refused is not None:
            return refused
        reliance = NO_RELIANCE
        if FilterName.AFFINITY in rules.filters and (placement.affinity or guarded):
            own_claim = "" if new_claim else claim_key(namespace, replica.status.placement.reservation)
            leaving = {victim_key(namespace, victim) for victim in victims}
            refused = self._anti_affinity_refusal(replica, node, leaving | {own_claim})
            found = refused or self._near_required(replica, node, leaving, own_claim)
            if isinstance(found, Refused):
                return found
            reliance = found
        spread = [rule for rule in placement.spread if not rule.preferred]
        if not new_claim or not spread or FilterName.SPREAD not in rules.filters or rules.filter_expressions:
            return reliance
        refused = self._spread_refusal(replica, node, spread, rules, victims)
        return refused or msgspec.structs.replace(reliance, reads_claims=True)

    # Inside

    def _node_refusal(self, replica: Replica, node: Node, rules: PolicyRules) -> Refused | None:
        placement, name = replica.spec.placement, node.metadata.name
        if FilterName.LABELS in rules.filters and not eligibility.matches_node_labels(placement, node.metadata.labels):
            return Refused(
                Reason.LABELS_DO_NOT_MATCH,
                f"node {name}: its labels do not match the placement rules of replica {replica.key}",
                {"node": name, "labels": dict(node.metadata.labels)},
            )
        if node.spec.taints:
            keeps_off = _taint_rule(rules)
            taint = keeps_off(node.spec.taints, placement.tolerations)
            if taint is not None:
                return Refused(
                    Reason.TAINT_NOT_TOLERATED,
                    f"node {name}: replica {replica.key} does not tolerate its taint {taint.key}:{taint.effect}",
                    {"node": name, "taint": taint.key, "effect": taint.effect.value},
                )
        return None

    def _anti_affinity_refusal(self, replica: Replica, node: Node, ignored: set[str]) -> Refused | None:
        """Work that is stopping still counts: it may run until it has stopped. `ignored`: the claim's victims, which
        stop before the bind, and the replica's own claim. They are on the node."""
        index = self._state.ledger.neighbours
        namespace, own = replica.metadata.namespace, replica.spec.workload
        for rule in required_anti_affinity(replica.spec.placement):
            for claim in self._neighbours(replica, rule, node):
                if claim.key not in ignored:
                    return _apart(replica, node, claim.workload)
        labels = labels_of(replica)
        ignored_guards = self._guards_of(namespace, ignored)
        for workload, topology, selector, nodes in index.guards(namespace):
            if not eligibility.is_kept_apart(workload, selector, own, labels):
                continue
            without = ignored_guards[workload, topology, selector] if ignored_guards else 0
            if any(
                count > (without if name == node.metadata.name else 0) and self._in_domain(name, node, topology)
                for name, count in nodes.items()
            ):
                return _apart(replica, node, workload)
        return None

    def _guards_of(self, namespace: str, keys: Iterable[str]) -> Counter[tuple[str, str, NeighbourSelector]]:
        """Number of these claims of the tenant with each required anti-affinity rule, as in `NeighbourIndex.guards`."""
        found: Counter[tuple[str, str, NeighbourSelector]] = Counter()
        for claim in (self._state.ledger.claims.get(key) for key in keys):
            if claim is not None and claim.quota_held and claim.namespace == namespace:
                found.update((claim.workload, r.topology, eligibility.selector_of(r)) for r in claim.anti_affinity)
        return found

    def _near_required(
        self, replica: Replica, node: Node, leaving: set[str], own_claim: str
    ) -> Refused | RelianceOnClaims:
        compares: dict[str, int] = {}
        in_flight: list[str] = []
        rules = required_affinity(replica.spec.placement)
        for rule in rules:
            near = (c for c in self._neighbours(replica, rule, node) if c.key != own_claim)
            staying = [c for c in near if not c.nominated and not self._leaves(c, leaving)]
            if not staying and self._is_first(replica, rule, node, leaving, own_claim):
                continue
            if not staying:
                what = ", ".join(f"{key}={value}" for key, value in sorted(rule.workload_labels.items()))
                what += " and its expressions" if rule.expressions else ""
                where = _domain_text(node, rule.topology)
                return Refused(
                    Reason.AFFINITY_NOT_MET,
                    f"replica {replica.key}: its affinity needs a replica with labels {what} that stays on {where}",
                    {"node": node.metadata.name, "topology": rule.topology, "labels": dict(rule.workload_labels)},
                )
            stored = next((found for found in map(self._stored, staying) if found is not None), None)
            if stored is not None:
                compares[stored[0]] = stored[1]
            else:
                in_flight.append(staying[0].key)
        return RelianceOnClaims(compares, tuple(in_flight), reads_claims=bool(rules))

    def _is_first(self, replica: Replica, rule: AffinityRule, node: Node, leaving: set[str], own_claim: str) -> bool:
        """Whether the replica needs no neighbour: it matches its own rule, and no matching claim that does not leave is
        outside its domain."""
        own = eligibility.may_be_first(rule, replica.spec.workload, labels_of(replica))
        if not own or _domain_of(node, rule.topology) is None:
            return False
        return not any(
            claim.key != own_claim and not self._leaves(claim, leaving)
            for claim in self._neighbours(replica, rule, node, outside=True)
        )

    def _neighbours(
        self, replica: Replica, rule: AffinityRule, node: Node, *, outside: bool = False
    ) -> Iterator[Claim]:
        """Claims that the rule is about, in the node's domain or, with `outside`, on the other nodes that exist."""
        own = replica.spec.workload
        for workload, labels, by_node in self._state.ledger.neighbours.groups(replica.metadata.namespace):
            if not eligibility.is_neighbour(rule, own, workload, labels):
                continue
            for name, claims in by_node.items():
                if self._in_domain(name, node, rule.topology) is not outside and self._state.node(name) is not None:
                    yield from claims.values()

    def _in_domain(self, name: str, node: Node, topology: str) -> bool:
        if topology == "node":
            return name == node.metadata.name
        other = self._state.node(name)
        own = _domain_of(node, topology)
        return other is not None and own is not None and _domain_of(other, topology) == own

    def _leaves(self, claim: Claim, leaving: set[str]) -> bool:
        if claim.stopping or claim.key in leaving:
            return True
        nominated = self._state.ledger.account(claim.node).nominated_claims.values()
        return any(victim_key(n.namespace, victim) == claim.key for n in nominated for victim in n.victims)

    def _stored(self, claim: Claim) -> tuple[str, int] | None:
        """Store key and revision of the claim's published record; None if its commit is in flight."""
        binding = self._state.binding(claim.namespace, claim.name)
        if binding is not None:
            runs = binding.spec.desired is DesiredRunState.RUN
            return (BINDING.store_key(claim.namespace, claim.name), binding.revision) if runs else None
        reservation = self._state.reservation(claim.namespace, claim.name)
        if reservation is None or claim.bound:
            return None
        return RESERVATION.store_key(claim.namespace, claim.name), reservation.revision

    def _spread_refusal(
        self, replica: Replica, node: Node, spread: Iterable[SpreadRule], rules: PolicyRules, victims: Iterable[str]
    ) -> Refused | None:
        counts = self._staying_counts(replica, node, victims)
        domains = self._state.domains.find(self._domain_key(replica, rules), self._eligible(replica, rules))
        for rule in spread:
            own = _domain_of(node, rule.topology)
            if own is None:
                return Refused(
                    Reason.SPREAD_VIOLATED,
                    f"replica {replica.key}: its spread rule needs label {rule.topology}, which node "
                    f"{node.metadata.name} does not have",
                    {"node": node.metadata.name, "topology": rule.topology},
                )
            if rule.topology == "node":
                used = [count for name, count in counts.items() if name in domains.nodes]
                count, total = counts.get(own, 0), len(domains.nodes)
                fewest = 0 if total > len(used) else min(used, default=0)
            else:
                by_domain = self._by_domain(rule.topology, domains, counts)
                count, total = by_domain.get(own, 0), len(by_domain)
                fewest = min(by_domain.values(), default=0)
            fewest, domain = (
                eligibility.counted_fewest(fewest, total, rule.min_domains),
                _domain_text(node, rule.topology),
            )
            if not eligibility.allows_skew(rule.max_skew, count, fewest):
                return Refused(
                    Reason.SPREAD_VIOLATED,
                    f"replica {replica.key}: its spread rule allows {rule.max_skew} more replicas than in the emptiest "
                    f"{rule.topology} ({domain} has {count}, the emptiest has {fewest})",
                    {"node": node.metadata.name, "topology": rule.topology, "count": count, "fewest": fewest},
                )
        return None

    def _staying_counts(self, replica: Replica, node: Node, victims: Iterable[str]) -> Mapping[str, int]:
        """Replicas of the workload per node, without those that stop and without the victims, which are on the node."""
        namespace, workload = replica.metadata.namespace, replica.spec.workload
        counts = self._state.ledger.neighbours.staying(namespace, workload)
        named = (self._state.ledger.claims.get(victim_key(namespace, victim)) for victim in victims)
        own = sum(
            claim is not None
            and (claim.namespace, claim.workload, claim.node) == (namespace, workload, node.metadata.name)
            and claim.quota_held
            and not claim.stopping
            for claim in named
        )
        return {**counts, node.metadata.name: counts[node.metadata.name] - own} if own else counts

    def _by_domain(self, topology: str, domains: Domains, counts: Mapping[str, int]) -> dict[str, int]:
        """Replicas per zone, or per value of a node label."""
        found = dict.fromkeys(domains.zones if topology == "zone" else domains.values(topology), 0)
        for name, count in counts.items():
            node = self._state.node(name)
            domain = _domain_of(node, topology) if node is not None else None
            if domain is not None and domain in found:
                found[domain] += count
        return found

    def _domain_key(self, replica: Replica, rules: PolicyRules) -> tuple[object, ...]:
        placement, namespace = replica.spec.placement, replica.metadata.namespace
        dedicated = self._is_dedicated(replica)
        return (
            namespace if dedicated else "",
            dedicated,
            required_driver(replica.spec.template),
            placement.zones,
            placement.pools,
            tuple(sorted(placement.node_selector.items())),
            placement.expressions,
            placement.node_terms,
            placement.tolerations,
            FilterName.LABELS in rules.filters,
            FilterName.TAINTS in rules.filters,
            tuple(sorted(o.metadata.name for o in self._avoidances_of(replica))),
        )

    def _eligible(self, replica: Replica, rules: PolicyRules) -> Callable[[Node], bool]:
        """Whether a node counts as a domain of the workload: it passes the filters that depend on the node alone."""
        placement: PlacementRules = replica.spec.placement
        namespace, workload = replica.metadata.namespace, replica.spec.workload
        driver, dedicated = required_driver(replica.spec.template), self._is_dedicated(replica)
        paths = host_path_needs(replica.spec.template)
        avoidances, region = self._avoidances_of(replica), self._state.region
        until_s = replica_stays_until_s(replica, self._now)
        labels, keeps_off = FilterName.LABELS in rules.filters, _taint_rule(rules)

        def eligible(node: Node) -> bool:
            zone = node.spec.zone
            return (
                not unschedulable_reason(node)
                and eligibility.allows_zone(placement, zone)
                and eligibility.allows_pool(placement, node.spec.pool)
                and eligibility.can_use_node(namespace, node.spec.tenant, dedicated=dedicated)
                and eligibility.has_driver(node.spec.drivers, driver)
                and not refused_host_path(node.spec.host_paths, namespace, paths)
                and (not labels or eligibility.matches_node_labels(placement, node.metadata.labels))
                and keeps_off(node.spec.taints, placement.tolerations) is None
                and avoidance_of(
                    avoidances,
                    region=region,
                    zone=zone,
                    tenant=namespace,
                    workload=workload,
                    stays_until_s=until_s,
                    node=node.metadata.name,
                )
                is None
            )

        return eligible

    def _avoidances_of(self, replica: Replica) -> list[Override]:
        namespace, workload, region = replica.metadata.namespace, replica.spec.workload, self._state.region
        if not self._avoidances:
            return []
        until_s = replica_stays_until_s(replica, self._now)
        return [
            o
            for o in self._avoidances
            if is_in_scope(o, region=region, tenant=namespace, workload=workload) and has_begun_by(o, until_s)
        ]

    def _is_dedicated(self, replica: Replica) -> bool:
        return replica.spec.dedicated or is_dedicated(self._state.tenant(replica.metadata.namespace))


def _taint_rule(rules: PolicyRules) -> Callable[[tuple[Taint, ...], tuple[Toleration, ...]], Taint | None]:
    """Which taints keep replicas off: without the policy's Taints filter, only those that evict."""
    if FilterName.TAINTS in rules.filters:
        return eligibility.first_untolerated_taint
    return eligibility.evicting_taint


def _domain_of(node: Node, topology: str) -> str | None:
    return eligibility.domain_of(topology, node.metadata.name, node.spec.zone, node.metadata.labels)


def _domain_text(node: Node, topology: str) -> str:
    return f"{topology} {_domain_of(node, topology) or 'unknown'}"


def labels_of(replica: Replica) -> Labels:
    return tuple(sorted(replica.spec.template.labels.items()))


def _apart(replica: Replica, node: Node, workload: str) -> Refused:
    return Refused(
        Reason.ANTI_AFFINITY_VIOLATED,
        f"replica {replica.key}: anti-affinity keeps it apart from workload {workload}, which has replicas at node "
        f"{node.metadata.name}",
        {"node": node.metadata.name, "workload": workload},
    )
