"""`holdfast policy`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option, table

PATH = "/apis/holdfast.dev/v1/schedulerpolicies"
MERGE = "application/merge-patch+json"
EXAMPLES = 10
LOOK_EVERY_S = 0.1
SHADOW_LOOKS = 30


@click.group()
def policy() -> None:
    """See, try, promote and take back scheduling policies.

    A policy's rules become immutable revisions. A draft decides nothing, a shadow is compared with what is decided, a
    canary decides in the regions it names, an active one everywhere. What is bound or starting keeps the decision it
    has. With spec.guard a revision that does badly is paused or taken back by itself.

    \b
    Examples:
      holdfast policy diff default
      holdfast policy promote default --canary eu-west
    """


class Policies:
    """The policy API of a platform's global cell."""

    def __init__(self, state: str) -> None:
        from holdfast.cli.drills.world import Watcher
        from holdfast.cli.platform.layout import Layout

        layout = Layout(state)
        self._watcher = Watcher(layout, layout.load())

    def __enter__(self) -> Policies:
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.close()

    def policy(self, name: str) -> dict[str, Any]:
        return self._watcher.get("schedulerpolicies", name)

    def revisions(self, name: str) -> list[dict[str, Any]]:
        """Newest sequence first."""
        mine = [r for r in self._watcher.list("policyrevisions") if r["spec"]["policy"] == name]
        return sorted(mine, key=lambda r: -int(r["spec"]["sequence"]))

    def regions(self) -> list[dict[str, Any]]:
        return self._watcher.list("regions")

    def patch(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = self._watcher.api().request(
            "PATCH", f"{PATH}/{name}", {"spec": spec}, content_type=MERGE
        )
        return done

    def shadowed(self, name: str) -> dict[str, Any]:
        """What regions recorded of the policy's shadow revision beside their own decisions."""
        revision = next((r["metadata"]["name"] for r in self.revisions(name) if r["spec"]["stage"] == "Shadow"), "")
        rows: list[dict[str, Any]] = []
        examples: list[str] = []
        for region in self._watcher.regions:
            row: dict[str, Any] = {"region": region, "decisions": 0, "same": 0, "other": 0, "gained": 0, "lost": 0}
            for decision in self._watcher.try_list("decisions", region) or []:
                shadow = decision["spec"].get("shadow") or {}
                if not revision or shadow.get("revision") != revision:
                    continue
                row["decisions"] += 1
                for count in ("same", "other", "gained", "lost"):
                    row[count] += shadow.get(count, 0)
                examples += _differs(region, decision)
            rows.append(row)
        return {
            "revision": revision,
            "regions": rows,
            "examples": examples[:EXAMPLES],
        }

    def until_shadowed(self, name: str) -> None:
        """A moment later the new rules are a revision; if that takes longer, what is shown says so."""
        import time

        for _ in range(SHADOW_LOOKS):
            if any(r["spec"]["stage"] == "Shadow" for r in self.revisions(name)):
                return
            time.sleep(LOOK_EVERY_S)

    def active(self, name: str) -> dict[str, Any] | None:
        return next((r for r in self.revisions(name) if r["spec"]["stage"] == "Active"), None)


def _differs(region: str, decision: dict[str, Any]) -> list[str]:
    """One line for each replica the shadow would have placed elsewhere."""
    chosen = {entry["replica"]: entry.get("node") or "no place" for entry in decision["spec"]["entries"]}
    return [
        f"{region}: {decision['metadata']['namespace']}/{entry['replica']}: {chosen.get(entry['replica'], '?')}, "
        f"the shadow: {entry.get('node') or 'no place (' + entry.get('reason', '') + ')'}"
        for entry in decision["spec"]["shadow"].get("entries", [])
    ]


def _told(output: str, done: dict[str, Any], line: str) -> None:
    if output == "json":
        print_json(done)
    else:
        click.echo(line)


def replaced_revisions(revisions: list[dict[str, Any]]) -> set[str]:
    """Those that were active and are no more. They keep their stage, as a rollback goes back to one of them: what
    decides is the active one with the highest sequence."""
    active = [r for r in revisions if r["spec"]["stage"] == "Active"]
    newest = max(active, key=lambda r: int(r["spec"]["sequence"]), default=None)
    return {r["metadata"]["name"] for r in active if r is not newest}


@policy.command("list")
@click.argument("name", default="default")
@state_option
@output_option
def list_revisions(name: str, state: str, output: str) -> None:
    """List a policy's revisions, and which regions decide by which. One that was active before is Replaced.

    \b
    Examples:
      holdfast policy list
    """
    with Policies(state) as policies:
        found = policies.revisions(name)
        held = policies.policy(name).get("status", {}).get("held") or {}
        using: dict[str, list[str]] = {}
        for region in policies.regions():
            revision = region.get("status", {}).get("report", {}).get("policy", "")
            using.setdefault(revision, []).append(region["metadata"]["name"])
    replaced = replaced_revisions(found)
    if output == "json":
        print_json([{**r["spec"], "name": r["metadata"]["name"], "usedBy": using.get(r["metadata"]["name"], []),
                     "replaced": r["metadata"]["name"] in replaced} for r in found])  # fmt: skip
        return
    rows = [
        (r["metadata"]["name"], r["spec"]["sequence"],
         "Replaced" if r["metadata"]["name"] in replaced else r["spec"]["stage"],
         " ".join(r["spec"].get("regions", [])),
         " ".join(using.get(r["metadata"]["name"], [])))
        for r in found
    ]  # fmt: skip
    click.echo(table(("REVISION", "SEQUENCE", "STAGE", "CANARY REGIONS", "DECIDES IN"), rows))
    if held:
        click.echo(f"{held['revision']} was stopped by its guard ({held['action']}): {held['message']}")


@policy.command("diff")
@click.argument("name", default="default")
@state_option
@output_option
def diff(name: str, state: str, output: str) -> int:
    """Show how the policy's rules differ from the active revision's. Exits with 3 when they do.

    \b
    Examples:
      holdfast policy diff default
    """
    with Policies(state) as policies:
        wanted = policies.policy(name)["spec"].get("rules", {})
        active = policies.active(name)
    before = active["spec"].get("rules", {}) if active is not None else {}
    changed = {key: {"active": before.get(key), "policy": wanted.get(key)} for key in sorted({*before, *wanted})
               if before.get(key) != wanted.get(key)}  # fmt: skip
    if output == "json":
        print_json(changed)
    elif not changed:
        click.echo("the active revision has these rules")
    else:
        for key, sides in changed.items():
            click.echo(f"{key}:\n  - {sides['active']}\n  + {sides['policy']}")
    return Exit.PLAN_CHANGES if changed else Exit.OK


@policy.command("shadow")
@click.argument("name", default="default")
@click.option("-f", "--file", "file", type=click.Path(exists=True, dir_okay=False), help="A SchedulerPolicy to try.")
@state_option
@output_option
def shadow(name: str, file: str | None, state: str, output: str) -> None:
    """Let new rules decide beside the active ones, without effect, and show where they differ.

    Regions plan by both on the same state and record in their Decisions what the shadow would have chosen. Without
    -f the policy's own rules are shadowed; run it again to see what was recorded since.

    \b
    Examples:
      holdfast policy shadow default -f packing.yaml
      holdfast policy shadow default
    """
    import yaml

    spec: dict[str, Any] = {"stage": "Shadow", "canaryRegions": []}
    if file is not None:
        with open(file, encoding="utf-8") as source:
            document = yaml.safe_load(source) or {}
        if document.get("kind") != "SchedulerPolicy":
            raise Stop(f"{file} holds no SchedulerPolicy", next_step="kind: SchedulerPolicy", code=Exit.USAGE)
        spec["rules"] = document.get("spec", {}).get("rules", {})
    with Policies(state) as policies:
        stage = policies.policy(name)["spec"].get("stage", "Active")
        if file is None and stage == "Active":
            raise Stop(
                f"policy {name} is active: its rules decide everywhere and cannot be tried beside themselves",
                next_step=f"holdfast policy shadow {name} -f RULES.yaml, with a SchedulerPolicy that has others",
                code=Exit.CONFLICT,
            )
        if file is not None or stage != "Shadow":
            policies.patch(name, spec)
            policies.until_shadowed(name)
        shadowed = policies.shadowed(name)
    if output == "json":
        print_json(shadowed)
        return
    click.echo(f"policy {name}: Shadow, revision {shadowed['revision'] or '(not made yet: look again)'}")
    rows = [(r["region"], r["decisions"], r["same"], r["other"], r["gained"], r["lost"]) for r in shadowed["regions"]]
    click.echo(
        table(("REGION", "DECISIONS COMPARED", "SAME", "OTHER", "ONLY IT PLACES", "ONLY THE ACTIVE PLACES"), rows)
    )
    for line in shadowed["examples"]:
        click.echo(f"  {line}")


@policy.command("promote")
@click.argument("name", default="default")
@click.option("--canary", multiple=True, metavar="REGION", help="Decide by it in these regions only.")
@state_option
@output_option
def promote(name: str, canary: tuple[str, ...], state: str, output: str) -> None:
    """Let the policy decide: in the canary regions named, or everywhere.

    \b
    Examples:
      holdfast policy promote default --canary eu-west
      holdfast policy promote default
    """
    stage = "Canary" if canary else "Active"
    with Policies(state) as policies:
        done = policies.patch(name, {"stage": stage, "canaryRegions": list(canary)})
    _told(output, done, f"policy {name}: {stage}{' in ' + ', '.join(canary) if canary else ' everywhere'}")


@policy.command("rollback")
@click.argument("name", default="default")
@state_option
@output_option
def rollback(name: str, state: str, output: str) -> None:
    """Go back to the rules that were active before. The sequence still rises.

    \b
    Examples:
      holdfast policy rollback default
    """
    with Policies(state) as policies:
        current = policies.policy(name).get("status", {}).get("revision", "")
        before = next((r for r in policies.revisions(name)
                       if r["spec"]["stage"] == "Active" and r["metadata"]["name"] != current), None)  # fmt: skip
        if before is None:
            raise Stop(f"policy {name} has no earlier active revision", next_step="holdfast policy list shows them")
        rules = before["spec"].get("rules", {})
        done = policies.patch(name, {"stage": "Active", "canaryRegions": [], "rules": rules})
    _told(output, done, f"policy {name}: back to the rules of {before['metadata']['name']}")
