"""Kinds as `holdfast get` finds them: those of the kind table, and every other kind that the global cell serves."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.kinds import ALL, Home


class ListedKind(msgspec.Struct, frozen=True):
    """`home` is where its objects are read; kinds that only the API knows are read from the global cell."""

    name: str
    plural: str
    group: str
    namespaced: bool
    home: Home
    short_names: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        return self.name.lower()

    @property
    def resource(self) -> str:
        return f"{self.singular}.{self.group}" if self.group else self.singular

    def is_named(self, text: str) -> bool:
        return text in (self.plural, self.singular, *self.short_names)

    def path(self, tenant: str) -> str:
        root = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        if tenant and not self.namespaced:
            raise CommandError(
                f"-n {tenant}: {self.plural} do not belong to tenants",
                next_step=f"holdfast get {self.plural}",
                code=ExitCode.USAGE,
            )
        return f"{root}/namespaces/{tenant}/{self.plural}" if tenant else f"{root}/{self.plural}"


OWN = tuple(ListedKind(k.name, k.plural, k.group, k.namespaced, k.home, k.short_names) for k in ALL if not k.internal)


def kind_named(text: str, api: CellApi) -> ListedKind:
    """The kind with this plural, singular or short name, with or without its group."""
    wanted, _, group = text.lower().partition(".")
    kind = next((k for k in OWN if k.is_named(wanted) and group in ("", k.group)), None)
    if kind is not None:
        return kind
    served: list[ListedKind] = []
    try:
        served = _served_kinds(api)
    except CommandError as stop:
        if stop.code is not ExitCode.UNREACHABLE:
            raise
    kind = next((k for k in served if k.is_named(wanted) and group in ("", k.group)), None)
    if kind is not None:
        return kind
    import difflib

    plurals = sorted({k.plural for k in (*OWN, *served)})
    near = difflib.get_close_matches(wanted, plurals, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    step = f"holdfast get {near[0]}" if near else "kubectl api-resources"
    raise CommandError(
        f"kind {text}: not found{guess} (expected one of {', '.join(plurals)})", next_step=step, code=ExitCode.USAGE
    )


def _served_kinds(api: CellApi) -> list[ListedKind]:
    # Those of version v1: metrics.k8s.io is v1beta1, and its pods and nodes are measurements.
    groups = [g["name"] for g in api.get("/apis")["groups"] if g["preferredVersion"]["version"] == "v1"]
    found = []
    for group in ("", *groups):
        path = f"/apis/{group}/v1" if group else "/api/v1"
        rows: list[dict[str, Any]] = api.get(path)["resources"]
        found += [
            ListedKind(r["kind"], r["name"], group, r["namespaced"], Home.GLOBAL, tuple(r.get("shortNames", ())))
            for r in rows
            if "list" in r["verbs"]
        ]
    return found
