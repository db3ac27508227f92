"""`holdfast get`: one table of a kind, merged from all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.client.sync_api import CellApi
    from holdfast.insight.region_clients import RegionClients
    from holdfast.model.kinds import Kind

TABLE_MEDIA_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io"
WIDE_PRIORITY = 1


@click.command()
@click.argument("kind", metavar="KIND", shell_complete=shell_completion.complete_kinds)
@click.argument("name", required=False, default="")
@click.option("-n", "--tenant", "--namespace", "tenant", default="", help="Only objects of this tenant.")
@click.option("-l", "--selector", default="", help="Label selector, such as app=web.")
@click.option("--region", default="", help="Only this region.")
@click.option("--wide", is_flag=True, help="Show more columns.")
@state_option
@output_option
def get(kind: str, name: str, *, tenant: str, selector: str, region: str, wide: bool, state: str, output: str) -> int:
    """List objects of a kind from all cells, like `kubectl get`.

    KIND is a plural, singular or short name, as for kubectl. Global kinds are read from the global cell, regional kinds
    from every region. Unreachable regions are listed, and the command then exits with 8.

    \b
    Examples:
      holdfast get nodes
      holdfast get replicas -n payments --wide
      holdfast get decisions -n payments -o json
    """
    from holdfast.insight.region_clients import list_all
    from holdfast.platform.region_connections import connect_regions, print_unreachable

    found = kind_named(kind)
    regions = connect_regions(state)
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    if selector:
        query["labelSelector"] = selector
    cells = cells_of(regions, found, region)
    path = path_of(found, tenant)
    if output == "json":
        items = [{"cell": cell, **item} for cell, api in cells for item in list_all(api, path, query)]
        print_json({"kind": found.name, "items": items, "unreachable": regions.unreachable})
        empty = not items
    else:
        headers, rows = merged_table(cells, found, path, query, wide=wide, tenants=found.namespaced and not tenant)
        empty = not rows
        if rows:
            click.echo(table(headers, rows))
        elif not name:
            print_note(f"no {found.plural} found")
        print_unreachable(regions)
    if name and empty:
        regions.raise_not_found(
            f"{found.singular} {name}: not found in any cell", next_step=f"holdfast get {found.plural}"
        )
    return ExitCode.UNREACHABLE if regions.unreachable else ExitCode.OK


def kind_named(text: str) -> Kind:
    from holdfast.model.kinds import ALL

    wanted_name = text.lower().partition(".")[0]
    shown = [k for k in ALL if not k.internal]
    for kind in shown:
        if wanted_name in (kind.plural, kind.singular, *kind.short_names):
            return kind
    import difflib

    near = difflib.get_close_matches(wanted_name, [k.plural for k in shown], n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    known = ", ".join(sorted(k.plural for k in shown))
    step = f"holdfast get {near[0]}" if near else ""
    raise CommandError(f"kind {text}: not found{guess} (expected one of {known})", next_step=step, code=ExitCode.USAGE)


def cells_of(regions: RegionClients, kind: Kind, region: str) -> list[tuple[str, CellApi]]:
    """The cells to list: the home cells of the kind, or the region that --region selects."""
    from holdfast.model.kinds import Home

    if region:
        list(regions.select(region))  # raises if the region does not exist
    own = [("global", regions.global_api)] if kind.home is not Home.REGION and not region else []
    if kind.home is Home.GLOBAL and not region:
        return own
    return own + [(r.name, r.api) for r in regions.reachable if region in ("", r.name)]


def path_of(kind: Kind, tenant: str) -> str:
    root = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
    if tenant and not kind.namespaced:
        raise CommandError(
            f"-n {tenant}: {kind.plural} do not belong to tenants",
            next_step=f"holdfast get {kind.plural}",
            code=ExitCode.USAGE,
        )
    return f"{root}/namespaces/{tenant}/{kind.plural}" if tenant else f"{root}/{kind.plural}"


def merged_table(
    cells: Sequence[tuple[str, CellApi]], kind: Kind, path: str, query: dict[str, str], *, wide: bool, tenants: bool
) -> tuple[list[str], list[list[Any]]]:
    """The servers' own tables below each other, with the cell in front."""
    headers: list[str] = []
    rows: list[list[Any]] = []
    for cell, api in cells:
        columns, found = read_table(api, path, query)
        shown = [i for i, c in enumerate(columns) if wide or c.get("priority", 0) < WIDE_PRIORITY]
        headers = headers or [columns[i]["name"].upper() for i in shown]
        for row in found:
            meta = row.get("object", {}).get("metadata", {})
            cut = [row["cells"][i] if row["cells"][i] is not None else "" for i in shown]
            rows.append([cell, *([meta.get("namespace", "")] if tenants else []), *cut])
    return ["CELL", *(["TENANT"] if tenants else []), *headers], rows


def read_table(api: CellApi, path: str, query: dict[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from holdfast.client.sync_api import PAGES_MAX
    from holdfast.model.limits import LIST_PAGE_OBJECTS

    columns: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    parameters = {"limit": str(LIST_PAGE_OBJECTS), **query}
    for _ in range(PAGES_MAX):
        answer = api.request("GET", path, query=parameters, accept=TABLE_MEDIA_TYPE)
        columns = columns or answer["columnDefinitions"]
        rows.extend(answer["rows"] or ())
        rest = answer.get("metadata", {}).get("continue", "")
        if not rest:
            return columns, rows
        parameters = {"limit": str(LIST_PAGE_OBJECTS), **query, "continue": rest}
    raise CommandError(
        f"{path}: more than {PAGES_MAX * LIST_PAGE_OBJECTS} objects", next_step="narrow it with -n, -l or --region"
    )
