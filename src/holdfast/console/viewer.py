"""What a caller of the console may read. Asks the same authorizer as the API."""

from __future__ import annotations

import msgspec

from holdfast.gate.authorize import access_refusal
from holdfast.model.errors import Forbidden, Refused
from holdfast.model.principal import APPROVERS, OPERATORS, VIEWERS, Principal, from_identity, is_group_of_people


class Viewer(msgspec.Struct, frozen=True):
    """`tenants` are those whose objects the caller may read, `cells` those that its credential is valid in; None means
    all."""

    name: str
    groups: tuple[str, ...]
    tenants: frozenset[str] | None
    cells: frozenset[str] | None = None

    def sees(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants

    def require_tenant(self, tenant: str, resource: str) -> None:
        if not self.sees(tenant):
            raise Forbidden(f'{resource} is forbidden: User "{self.name}" cannot read tenant "{tenant}"')

    @property
    def scope(self) -> str:
        """Callers with the same scope get the same answers."""
        tenants = "*" if self.tenants is None else ",".join(sorted(self.tenants))
        return tenants if self.cells is None else f"{tenants} in {','.join(sorted(self.cells))}"

    def reaches(self, cell: str) -> bool:
        return self.cells is None or cell in self.cells

    @property
    def role(self) -> str:
        if OPERATORS in self.groups:
            return "operator"
        return "viewer" if VIEWERS in self.groups or APPROVERS in self.groups else "tenant"


def viewer_of(who: Principal) -> Viewer:
    """The caller as a reader. Raises Forbidden for a caller that may read no tenant: a node, a region, a monitor."""
    if access_refusal(who, "list", "workloads") is None:
        return Viewer(who.name, who.groups, None)
    if not who.tenants:
        raise Forbidden(f'console is forbidden: User "{who.name}" may read no tenant')
    return Viewer(who.name, who.groups, who.tenants)


def asserted_viewer(name: str, groups: tuple[str, ...]) -> Viewer:
    """The caller that the global cell names in a query to a region, as a reader."""
    return viewer_of(asserted_principal(name, groups))


def asserted_principal(name: str, groups: tuple[str, ...]) -> Principal:
    """The caller that the global cell names. Only the groups of people count: no component acts through the console."""
    people = tuple(g for g in groups if is_group_of_people(g))
    return from_identity(name, people, credential="console")


def read_refusal(viewer: Viewer, resource: str) -> Refused | None:
    """Why the caller may not list this resource everywhere; None if allowed."""
    return access_refusal(from_identity(viewer.name, viewer.groups, credential="console"), "list", resource)
