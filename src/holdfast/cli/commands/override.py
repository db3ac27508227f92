"""`holdfast override`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.drills.platform_observer import PlatformObserver

KINDS = (
    "AvoidZone",
    "AvoidRegion",
    "DeclareRegionLost",
    "PauseAutoscaler",
    "PauseRepair",
    "ApproveRepair",
    "EmergencyQuota",
    "RaisePriority",
    "PinPolicy",
    "ShrinkBudget",
    "ConfirmDeletion",
    "PauseRebalance",
)
PATH = "/apis/holdfast.dev/v1/overrides"
MERGE_PATCH = "application/merge-patch+json"
BREAK_GLASS_TTL_S = 900.0


@click.group()
def override() -> None:
    """Create, approve, revoke and list overrides: audited, expiring exceptions.

    An override has a scope, a reason, a requester and a TTL. It expires by itself, and the platform verifies that its
    effect is reverted. To extend an override, create another one.

    \b
    Examples:
      holdfast override create AvoidZone --region eu-west --zone eu-west-a --reason "cooling failed"
      holdfast override list
    """


def _observer(state: str) -> PlatformObserver:
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return PlatformObserver(layout, layout.load())


@override.command("create")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--name", default="", help="Name of the override; generated if not set.")
@click.option("--reason", required=True, help="Reason, for the incident review.")
@click.option(
    "--ttl", "ttl_s", type=float, default=3600.0, show_default=True, help="TTL in seconds; 900 with --break-glass."
)
@click.option("--region", shell_complete=shell_completion.complete_regions, default="", help="Scope: region.")
@click.option("--zone", default="", help="Scope: zone.")
@click.option("--tenant", shell_complete=shell_completion.complete_tenants, default="", help="Scope: tenant.")
@click.option("--workload", default="", help="Scope: workload.")
@click.option("--quota", multiple=True, metavar="RESOURCE=AMOUNT", help="EmergencyQuota: the additional quota.")
@click.option(
    "--drain",
    "drain_s",
    type=float,
    default=0.0,
    help="EmergencyQuota: seconds after its end within which usage above the quota is drained; 600 if not set.",
)
@click.option("--priority", type=int, default=0, help="RaisePriority: the new priority.")
@click.option("--policy-revision", default="", help="PinPolicy: the pinned policy revision.")
@click.option("--break-glass", is_flag=True, help="Create it in the region while the global cell is unreachable.")
@click.option(
    "--insist", is_flag=True, help="With --break-glass: state that the global cell does not answer. It is recorded."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@state_option
@output_option
def create(kind: str, *, state: str, output: str, yes: bool, break_glass: bool, **arguments: Any) -> None:
    """Create an override. Prints the affected workloads and asks for confirmation first.

    With --break-glass the override is created in the region of --region. The region accepts it while the global cell is
    unreachable, for at most 30 minutes, and not for EmergencyQuota or DeclareRegionLost. A region notices within 10 s
    that the global cell is unreachable; --insist does not wait for that. The override is reported to the global cell
    after reconnection.

    \b
    Examples:
      holdfast override create AvoidZone --region eu-west --zone eu-west-a --reason "cooling failed" --ttl 1800
      holdfast override create EmergencyQuota --tenant payments --quota cpu=4 --reason "sale" --yes
      holdfast override create PauseRepair --break-glass --region eu-west --ttl 900 --reason "partitioned, flapping"
    """
    import uuid

    if arguments["insist"] and not break_glass:
        raise CommandError("--insist: only with --break-glass", next_step="add --break-glass", code=ExitCode.USAGE)
    if break_glass and not arguments["region"]:
        raise CommandError("--break-glass: --region is missing", next_step="add --region REGION", code=ExitCode.USAGE)
    cell = arguments["region"] if break_glass else "global"
    if break_glass and click.get_current_context().get_parameter_source("ttl_s") is click.core.ParameterSource.DEFAULT:
        arguments["ttl_s"] = BREAK_GLASS_TTL_S
    observer = _observer(state)
    try:
        if cell != "global" and cell not in observer.regions:
            raise CommandError(
                f"region {cell}: not found (expected one of {', '.join(observer.regions)})", code=ExitCode.USAGE
            )
        scope = {key: arguments[key] for key in ("region", "zone", "tenant", "workload") if arguments[key]}
        _check_scope(observer, scope, cell)
        touched = _blast_radius(observer, kind, scope, cell)
        for line in touched:
            print_note(line)
        if not yes:
            _confirm(f"Create this {kind} for {arguments['ttl_s']:g} s?")
        spec: dict[str, Any] = {
            "kind": kind,
            "scope": scope,
            "reason": arguments["reason"],
            "ttlSeconds": arguments["ttl_s"],
        }
        if arguments["insist"]:
            spec["breakGlass"] = {"region": cell, "insisted": True}
        if arguments["quota"]:
            spec["quota"] = dict(_pair(text) for text in arguments["quota"])
        if arguments["drain_s"]:
            spec["drainSeconds"] = arguments["drain_s"]
        if arguments["priority"]:
            spec["priority"] = arguments["priority"]
        if arguments["policy_revision"]:
            spec["policyRevision"] = arguments["policy_revision"]
        made_up = f"{kind.lower()}-{uuid.uuid4().hex[:8]}"
        name = arguments["name"] or (f"break-glass-{cell}-{made_up}" if break_glass else made_up)
        body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": name}, "spec": spec}
        made = observer.api(cell).request("POST", PATH, body)
        made = _until_seen(observer, made, cell)
    finally:
        observer.close()
    if output == "json":
        print_json(made)
        return
    phase = made.get("status", {}).get("phase", "")
    click.echo(f"override {name}: {phase or 'created'}")
    if phase == "Pending":
        print_note(f"next: another operator runs holdfast override approve {name}")


def _confirm(question: str) -> None:
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:  # Ctrl-C, or no terminal
        print_note("")
        agreed = False
    if not agreed:
        raise CommandError(
            "override: not created, because it was not confirmed", next_step="add --yes", code=ExitCode.INTERRUPTED
        )


def _check_scope(observer: PlatformObserver, scope: dict[str, str], cell: str) -> None:
    """Raises if the scope names a missing object. The API would accept such an override without effect."""
    region, zone, tenant, workload = (scope.get(part, "") for part in ("region", "zone", "tenant", "workload"))
    regions = {r["metadata"]["name"]: r for r in observer.list("regions", cell)}
    if region:
        _require_known("region", region, regions)
    if zone:
        among = [regions[region]] if region else list(regions.values())
        zones = [z for r in among for z in r["spec"].get("zones", [])]
        _require_known("zone", zone, zones, f" in region {region}" if region else "")
    if tenant:
        _require_known("tenant", tenant, [t["metadata"]["name"] for t in observer.list("tenants", cell)])
    if workload and cell == "global":  # a region has only the workloads assigned to it
        known = [w["metadata"] for w in observer.list("workloads", cell)]
        _require_known("workload", workload, [w["name"] for w in known if tenant in ("", w["namespace"])])


def _require_known(what: str, name: str, known: Iterable[str], where: str = "") -> None:
    names = sorted(known)
    if name not in names:
        shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        raise CommandError(f"{what} {name}: not found{where} (expected one of {shown})", code=ExitCode.USAGE)


def _pair(text: str) -> tuple[str, str]:
    name, equals, amount = text.partition("=")
    if not equals or not name or not amount:
        raise CommandError(
            f"--quota {text}: invalid (expected RESOURCE=AMOUNT)", next_step="--quota cpu=4", code=ExitCode.USAGE
        )
    return name, amount


def _until_seen(observer: PlatformObserver, made: dict[str, Any], cell: str) -> dict[str, Any]:
    """Waits up to 2 s for the controller to set the phase."""
    import time

    for _ in range(20):
        if made.get("status", {}).get("phase"):
            break
        time.sleep(0.1)
        made = observer.get("overrides", made["metadata"]["name"], cell=cell)
    return made


def _blast_radius(observer: PlatformObserver, kind: str, scope: dict[str, str], cell: str) -> list[str]:
    """The workloads, replicas and serving replicas in the scope, as lines of text."""
    affected = []
    for item in observer.list("assignments", cell):
        spec = item["spec"]
        if scope.get("region") and spec["region"] != scope["region"]:
            continue
        if scope.get("tenant") and item["metadata"]["namespace"] != scope["tenant"]:
            continue
        if scope.get("workload") and spec["workload"] != scope["workload"]:
            continue
        affected.append(item)
    if scope.get("zone") and scope.get("region"):
        return _zone_radius(observer, kind, scope, affected)
    workloads = sorted({f"{a['metadata']['namespace']}/{a['spec']['workload']}" for a in affected})
    replicas = sum(a["spec"].get("replicas", 0) for a in affected)
    serving = sum(a.get("status", {}).get("serving", 0) for a in affected)
    if cell != "global":  # a region's copies of Assignments have no status, so its replicas are counted
        serving = _serving(observer, cell, {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in affected})
    return _touched(kind, scope, workloads, replicas, serving)


def _zone_radius(
    observer: PlatformObserver, kind: str, scope: dict[str, str], affected: list[dict[str, Any]]
) -> list[str]:
    """The same for the replicas placed in one zone, read from the region."""
    from holdfast.drills.platform_observer import serves

    found = observer.try_list("replicas", scope["region"])
    where = _scope_text(scope)
    if found is None:
        return [f"{kind} on {where}: region {scope['region']} is unreachable, so the affected replicas are not known"]
    assignments = {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in affected}
    affected_nodes = [
        r
        for r in found
        if r.get("status", {}).get("placement", {}).get("zone") == scope["zone"]
        and (r["metadata"]["namespace"], r["spec"]["assignment"]) in assignments
    ]
    workloads = sorted({f"{r['metadata']['namespace']}/{r['spec']['workload']}" for r in affected_nodes})
    return _touched(kind, scope, workloads, len(affected_nodes), sum(serves(r) for r in affected_nodes))


def _touched(kind: str, scope: dict[str, str], workloads: list[str], replicas: int, serving: int) -> list[str]:
    summary = f"affects {len(workloads)} workload(s), {replicas} replica(s), {serving} serving"
    lines = [f"{kind} on {_scope_text(scope)} {summary}", *(f"  {name}" for name in workloads[:10])]
    if len(workloads) > 10:
        lines.append(f"  and {len(workloads) - 10} more")
    return lines


def _scope_text(scope: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in scope.items()) or "everything"


def _serving(observer: PlatformObserver, region: str, assignments: set[tuple[str, str]]) -> int:
    from holdfast.drills.platform_observer import serves

    found = observer.list("replicas", region)
    matching = [r for r in found if (r["metadata"]["namespace"], r["spec"]["assignment"]) in assignments]
    return sum(serves(r) for r in matching)


@override.command("approve")
@click.argument("name")
@click.option("--token", envvar="HOLDFAST_TOKEN", default="", show_envvar=True, help="API token of the approver.")
@state_option
@output_option
def approve(name: str, token: str, state: str, output: str) -> None:
    """Approve another operator's override. The requester cannot approve it.

    \b
    Examples:
      HOLDFAST_TOKEN=$(cat my-token) holdfast override approve emergencyquota-1a2b3c4d
    """
    stored = _patch(state, name, {"approver": "me"}, token=token)
    print_json(stored) if output == "json" else click.echo(f"override {name}: approved")


@override.command("revoke")
@click.argument("name")
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="Region of a break-glass override; the global cell if not set.",
)
@state_option
@output_option
def revoke(name: str, region: str, state: str, output: str) -> None:
    """End an override before its TTL. Its record remains.

    \b
    Examples:
      holdfast override revoke avoidzone-1a2b3c4d
      holdfast override revoke break-glass-eu-west-pauserepair-1a2b3c4d --region eu-west
    """
    stored = _patch(state, name, {"revoked": True}, cell=region or "global")
    print_json(stored) if output == "json" else click.echo(f"override {name}: revoked")


def _patch(state: str, name: str, spec: dict[str, Any], *, token: str = "", cell: str = "global") -> dict[str, Any]:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), cell, token=token)
    try:
        stored: dict[str, Any] = api.request("PATCH", f"{PATH}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
        return stored
    finally:
        api.close()


def _all_overrides(observer: PlatformObserver) -> list[dict[str, Any]]:
    """Overrides of the global cell, and break-glass overrides of regions that are not reported to it yet."""
    found = observer.try_list("overrides", "global")
    if found is None:
        print_note("the global cell is unreachable: the list shows the regions' copies and break-glass overrides")
    known = {o["metadata"]["name"]: o for o in found or ()}
    for region in observer.regions:
        for item in observer.try_list("overrides", region) or ():
            if found is None or item["metadata"]["name"].startswith(f"break-glass-{region}-"):
                known.setdefault(item["metadata"]["name"], item)
    return [known[name] for name in sorted(known)]


@override.command("list")
@click.option("--all", "everything", is_flag=True, help="Include expired and revoked overrides.")
@state_option
@output_option
def list_overrides(everything: bool, state: str, output: str) -> None:
    """List overrides with scope, phase, remaining time, requester, approver and reason.

    \b
    Examples:
      holdfast override list
      holdfast override list --all -o json
    """
    import time

    from holdfast.model.times import parse_time

    observer = _observer(state)
    try:
        found = _all_overrides(observer)
    finally:
        observer.close()
    shown = [o for o in found if everything or o.get("status", {}).get("phase", "") in ("", "Pending", "Active")]
    if output == "json":
        print_json(shown)
        return
    rows = []
    for item in shown:
        spec, status = item["spec"], item.get("status", {})
        ends = status.get("expiresAt", "")
        left = f"{max(0.0, parse_time(ends) - time.time()):.0f} s" if ends and status.get("phase") == "Active" else ""
        where = " ".join(f"{k}={v}" for k, v in spec.get("scope", {}).items())
        rows.append(
            (
                item["metadata"]["name"],
                spec["kind"],
                where,
                status.get("phase", ""),
                left,
                spec.get("requester", ""),
                spec.get("approver", ""),
                spec["reason"],
            )
        )
    click.echo(table(("NAME", "KIND", "SCOPE", "PHASE", "REMAINING", "REQUESTER", "APPROVER", "REASON"), rows))
