"""`holdfast get`: tables of kinds, merged from all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import WATCH_EVERY_S, list_output_option, state_option, tenant_options, watch_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import is_wide, print_json, print_note, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.object_kinds import ListedKind
    from holdfast.client.sync_api import CellApi
    from holdfast.insight.region_clients import RegionClients

TABLE_MEDIA_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io"
WIDE_PRIORITY = 1
RowKey = tuple[str, ...]
TIME_COLUMNS = ("AGE", "LAST SEEN", "ANSWERED")


@click.command()
@click.argument("kind", metavar="KIND[,KIND…][/NAME]", shell_complete=shell_completion.complete_kinds)
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=shell_completion.complete_objects)
@tenant_options
@click.option("-l", "--selector", default="", help="Label selector, such as app=web.")
@click.option("--region", default="", shell_complete=shell_completion.complete_regions, help="Only this region.")
@click.option("--wide", is_flag=True, help="Show more columns, like -o wide.")
@watch_option
@state_option
@list_output_option
def get(
    kind: str,
    names: tuple[str, ...],
    *,
    tenant: str,
    all_tenants: bool,
    selector: str,
    region: str,
    wide: bool,
    watch: bool,
    state: str,
    output: str,
) -> int:
    """List objects of a kind from all cells, like `kubectl get`.

    KIND is a plural, singular or short name, as for kubectl; several are separated by commas. Every kind that the API
    serves is found. Global kinds are read from the global cell, regional kinds from every region. Unreachable regions
    are listed, and the command then exits with 8. With -w, rows that change are printed again.

    \b
    Examples:
      holdfast get nodes,regions
      holdfast get replicas -n payments -o wide
      holdfast get workload/risk-api -n payments -o yaml
      holdfast get pods -w
    """
    from holdfast.cli.object_kinds import kind_named
    from holdfast.platform.region_connections import connect_regions, print_unreachable

    if tenant and all_tenants:
        raise CommandError("-A and -n exclude each other", next_step="leave one of them out", code=ExitCode.USAGE)
    kind, _, first = kind.partition("/")
    names = (*((first,) if first else ()), *names)
    regions = connect_regions(state)
    found = [kind_named(text, regions.global_api) for text in kind.split(",") if text]
    if names and len(found) > 1:
        raise CommandError(
            f"{kind}: several kinds and a name", next_step=f"holdfast get {found[0].plural} NAME", code=ExitCode.USAGE
        )
    reads = [ObjectQuery(one, cells_of(regions, one, region), tenant, selector, names) for one in found]
    if watch:
        watch_rows(reads, wide=wide or is_wide())
    if output == "json":
        items = [item for read in reads for item in read.items()]
        kinds = ",".join(one.name for one in found)
        print_json({"kind": kinds, "items": items, "unreachable": regions.unreachable})
        missing = read_names_missing(names, [item["metadata"]["name"] for item in items])
    elif output == "name":
        texts = [f"{read.kind.resource}/{item['metadata']['name']}" for read in reads for item in read.items()]
        click.echo("\n".join(texts), nl=bool(texts))
        missing = read_names_missing(names, [text.rpartition("/")[2] for text in texts])
    else:
        missing = print_tables(reads, wide=wide or is_wide())
        print_unreachable(regions)
    for name in missing:
        regions.raise_not_found(
            f"{found[0].singular} {name}: not found in any cell", next_step=f"holdfast get {found[0].plural}"
        )
    return ExitCode.UNREACHABLE if regions.unreachable else ExitCode.OK


def read_names_missing(wanted: tuple[str, ...], found: Sequence[str]) -> list[str]:
    return [name for name in wanted if name not in found]


def print_tables(reads: Sequence[ObjectQuery], *, wide: bool) -> list[str]:
    """Prints one table per kind. Returns the wanted names that were not found."""
    missing: list[str] = []
    for index, read in enumerate(reads):
        headers, rows = read.table(wide=wide)
        missing += read_names_missing(read.names, [str(row[read.name_column]) for row in rows])
        if rows:
            click.echo(("\n" if index else "") + table(headers, rows))
        elif not read.names:
            print_note(f"no {read.kind.plural} found")
    return missing


def watch_rows(reads: Sequence[ObjectQuery], *, wide: bool) -> None:
    """Prints every row, and then each row that has changed, until Ctrl-C."""
    import time

    shown: dict[RowKey, list[Any]] = {}
    while True:
        for read in reads:
            headers, rows = read.table(wide=wide)
            before = {key: row for key, row in shown.items() if key[0] == read.kind.plural}
            now = {(read.kind.plural, *map(str, row[: read.name_column + 1])): row for row in rows}
            changed = changed_rows(headers, before, now)
            if changed:
                click.echo(table(headers, changed))
            for key in before.keys() - now.keys():
                del shown[key]
                click.echo(f"{read.kind.singular} {key[-1]}: deleted")
            shown.update(now)
        time.sleep(WATCH_EVERY_S)


def changed_rows(
    headers: Sequence[str], before: Mapping[RowKey, Sequence[Any]], now: Mapping[RowKey, Sequence[Any]]
) -> list[Sequence[Any]]:
    """Rows that are new or differ. That time has passed is not a change."""
    compared = [i for i, header in enumerate(headers) if header not in TIME_COLUMNS]
    return [row for key, row in now.items() if key not in before or any(row[i] != before[key][i] for i in compared)]


class ObjectQuery:
    """The objects of one kind that a command line selects."""

    def __init__(
        self, kind: ListedKind, cells: Sequence[tuple[str, CellApi]], tenant: str, selector: str, names: tuple[str, ...]
    ) -> None:
        self.kind = kind
        self.names = names
        self._cells = cells
        self._path = kind.path(tenant)
        self._shows_tenants = kind.namespaced and not tenant
        self._query = {"labelSelector": selector} if selector else {}
        if len(names) == 1:
            self._query["fieldSelector"] = f"metadata.name={names[0]}"

    @property
    def name_column(self) -> int:
        return 1 + self._shows_tenants

    def items(self) -> list[dict[str, Any]]:
        from holdfast.insight.region_clients import list_all

        found = [{"cell": cell, **i} for cell, api in self._cells for i in list_all(api, self._path, self._query)]
        return [item for item in found if not self.names or item["metadata"]["name"] in self.names]

    def table(self, *, wide: bool) -> tuple[list[str], list[list[Any]]]:
        """The servers' own tables below each other, with the cell in front."""
        headers: list[str] = []
        rows: list[list[Any]] = []
        for cell, api in self._cells:
            columns, found = read_table(api, self._path, self._query)
            shown = [i for i, c in enumerate(columns) if wide or c.get("priority", 0) < WIDE_PRIORITY]
            headers = headers or [columns[i]["name"].upper() for i in shown]
            for row in found:
                meta = row.get("object", {}).get("metadata", {})
                cut = [row["cells"][i] if row["cells"][i] is not None else "" for i in shown]
                if not self.names or meta.get("name") in self.names:
                    rows.append([cell, *([meta.get("namespace", "")] if self._shows_tenants else []), *cut])
        return ["CELL", *(["TENANT"] if self._shows_tenants else []), *headers], rows


def cells_of(regions: RegionClients, kind: ListedKind, region: str) -> list[tuple[str, CellApi]]:
    """The cells to list: the home cells of the kind, or the region that --region selects."""
    from holdfast.model.kinds import Home

    if region:
        list(regions.select(region))  # raises if the region does not exist
    own = [("global", regions.global_api)] if kind.home is not Home.REGION and not region else []
    if kind.home is Home.GLOBAL and not region:
        return own
    return own + [(r.name, r.api) for r in regions.reachable if region in ("", r.name)]


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
