"""`holdfast policy`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.document_files import read_document
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

PATH = "/apis/holdfast.dev/v1/schedulerpolicies"
MERGE_PATCH = "application/merge-patch+json"
POLL_EVERY_S = 0.1
SHADOW_POLLS_MAX = 30
BUILT_IN_REVISION = "builtin"
SKIPPED_WHY = "a region compares at most one batch per quarter second"


@click.group()
def policy() -> None:
    """Inspect, shadow, promote and roll back scheduling policies.

    The rules of a policy become immutable revisions. A draft is not used. A shadow is evaluated beside the active
    revision, without effect. A canary decides in the regions it names, an active revision in all others. Bound and
    starting replicas keep their decision. With spec.guard the platform pauses or rolls back a revision that performs
    badly. Only one policy may be in a stage other than Draft.

    \b
    Examples:
      holdfast policy diff default
      holdfast policy promote default --canary eu-west
    """


class PolicyApi:
    """Policies and their revisions, read and written through the global cell."""

    def __init__(self, state: str) -> None:
        from holdfast.drills.platform_observer import PlatformObserver
        from holdfast.platform.layout import Layout

        layout = Layout(state)
        self._observer = PlatformObserver(layout, layout.load())

    def __enter__(self) -> PolicyApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.close()

    def policy(self, name: str) -> dict[str, Any]:
        return self._observer.get("schedulerpolicies", name)

    def policies(self) -> list[dict[str, Any]]:
        return self._observer.list("schedulerpolicies")

    def revisions(self, name: str = "") -> list[dict[str, Any]]:
        """Newest sequence first; without a name those of all policies, deleted ones too."""
        revisions = [r for r in self._observer.list("policyrevisions") if name in ("", r["spec"]["policy"])]
        return sorted(revisions, key=lambda r: -int(r["spec"]["sequence"]))

    def regions(self) -> list[dict[str, Any]]:
        return self._observer.list("regions")

    def wait_until_used(self, name: str, before: str, timeout_s: float) -> None:
        """Waits until the policy has another revision than `before` and every region reports that it uses it."""
        import time

        deadline = time.monotonic() + timeout_s
        while True:
            revision = self.policy(name).get("status", {}).get("revision", "")
            others = [
                region["metadata"]["name"]
                for region in self.regions()
                if region.get("status", {}).get("report", {}).get("policy", "") != revision
            ]
            if revision and revision != before and not others:
                return
            if time.monotonic() >= deadline:
                missing = ", ".join(sorted(others)) or "none, because the revision does not exist yet"
                raise CommandError(
                    f"policy {name}: not used in all regions when --timeout expired (missing: {missing}); "
                    "the rollback goes on",
                    next_step=f"holdfast policy list {name}",
                    code=ExitCode.TIMED_OUT,
                )
            time.sleep(POLL_EVERY_S)

    def patch(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Changes the given fields. `rules` are replaced as a whole: no rule of before is left."""
        if "rules" in spec:
            before = self.policy(name)["spec"].get("rules", {})
            spec = {**spec, "rules": replacing_patch(before, spec["rules"])}
        stored: dict[str, Any] = self._observer.api().request(
            "PATCH", f"{PATH}/{name}", {"spec": spec}, content_type=MERGE_PATCH
        )
        return stored

    def shadow_comparison(self, name: str) -> dict[str, Any]:
        """Comparison of the policy's shadow revision with the decisions that regions recorded."""
        import msgspec

        from holdfast.insight.shadow_comparison import EXAMPLES_MAX, compare_shadow
        from holdfast.model.decision import Decision

        revision = next((r["metadata"]["name"] for r in self.revisions(name) if r["spec"]["stage"] == "Shadow"), "")
        decisions = {
            region: [msgspec.convert(d, Decision) for d in self._observer.try_list("decisions", region) or []]
            for region in self._observer.regions
        }
        found = [compare_shadow(region, recorded, revision) for region, recorded in decisions.items()]
        examples = [line for row in found for line in row.examples]
        rows = [{name: value for name, value in msgspec.structs.asdict(r).items() if name != "examples"} for r in found]
        return {"revision": revision, "regions": rows, "examples": examples[:EXAMPLES_MAX]}

    def wait_for_shadow_revision(self, name: str) -> None:
        """Waits up to 3 s until the controller has created the shadow revision."""
        import time

        for _ in range(SHADOW_POLLS_MAX):
            if any(r["spec"]["stage"] == "Shadow" for r in self.revisions(name)):
                return
            time.sleep(POLL_EVERY_S)

    def active_revision(self) -> dict[str, Any] | None:
        """The revision that decides outside the canary regions, whichever policy it belongs to."""
        return next((r for r in self.revisions() if r["spec"]["stage"] == "Active"), None)


def replacing_patch(before: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The JSON merge patch that turns one object into the other. A key that is to go is null."""
    changed = {
        key: replacing_patch(before[key], value)
        if isinstance(value, dict) and isinstance(before.get(key), dict)
        else value
        for key, value in wanted.items()
    }
    return {**dict.fromkeys(before.keys() - wanted.keys()), **changed}


def _print(output: str, stored: dict[str, Any], line: str) -> None:
    if output == "json":
        print_json(stored)
    else:
        click.echo(line)


def replaced_revisions(revisions: list[dict[str, Any]]) -> set[str]:
    """Names of the revisions that were active before. They keep stage Active, because a rollback returns to one of
    them. The active revision with the highest sequence decides."""
    active = [r for r in revisions if r["spec"]["stage"] == "Active"]
    newest = max(active, key=lambda r: int(r["spec"]["sequence"]), default=None)
    return {r["metadata"]["name"] for r in active if r is not newest}


def listed_revisions(name: str, revisions: list[dict[str, Any]], using: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The policy's revisions, and those of other policies that a region uses."""
    return [r for r in revisions if r["spec"]["policy"] == name or r["metadata"]["name"] in using]


def foreign_revision_notes(
    name: str, revisions: list[dict[str, Any]], using: dict[str, list[str]], policies: set[str]
) -> list[str]:
    """Says which regions use rules that are not those of the policy, so that no deciding rules are hidden."""
    owners = {r["metadata"]["name"]: r["spec"]["policy"] for r in revisions}
    notes = []
    for used, regions in sorted(using.items()):
        owner = owners.get(used, "")
        if used == BUILT_IN_REVISION:
            whose = "the built-in rules: no revision is active there"
        elif not owner or owner == name:
            continue
        elif owner in policies:
            whose = f"revision {used} of policy {owner}"
        else:
            whose = f"revision {used} of policy {owner}, which was deleted"
        notes.append(f"{' '.join(regions)}: decided by {whose}")
    return notes


def rollback_target(revisions: list[dict[str, Any]], current: str) -> dict[str, Any] | None:
    """The newest active revision apart from the current one. `revisions` has the newest sequence first."""
    return next((r for r in revisions if r["spec"]["stage"] == "Active" and r["metadata"]["name"] != current), None)


def rollback_text(name: str, revisions: list[dict[str, Any]], current: str, target: dict[str, Any]) -> str:
    """What a rollback did. If the removed rules were active, a second rollback returns to them."""
    left = f"from revision {current} " if current else ""
    line = f"policy {name}: rolled back {left}to the rules of revision {target['metadata']['name']}"
    if any(r["metadata"]["name"] == current and r["spec"]["stage"] == "Active" for r in revisions):
        line += f"\nanother rollback would return to revision {current}"
    return line


def rule_text(value: Any) -> str:
    """A value as a policy file has it, in one line of YAML."""
    import yaml

    if value is None:
        return "not set"
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.removesuffix("...\n").strip()


@policy.command("list")
@click.argument("name", default="default")
@state_option
@output_option
def list_revisions(name: str, state: str, output: str) -> None:
    """List a policy's revisions and the regions that use them. Formerly active revisions are shown as Replaced.

    Revisions of other or deleted policies are listed too if a region uses them.

    \b
    Examples:
      holdfast policy list
    """
    with PolicyApi(state) as policies:
        revisions = policies.revisions()
        known = {p["metadata"]["name"]: p for p in policies.policies()}
        if name not in known and all(r["spec"]["policy"] != name for r in revisions):
            policies.policy(name)  # raises: not found
        stop = known.get(name, {}).get("status", {}).get("stopped") or {}
        using: dict[str, list[str]] = {}
        for region in policies.regions():
            revision = region.get("status", {}).get("report", {}).get("policy", "")
            using.setdefault(revision, []).append(region["metadata"]["name"])
    found = listed_revisions(name, revisions, using)
    replaced = replaced_revisions(revisions)
    if output == "json":
        print_json(
            [
                {
                    **r["spec"],
                    "name": r["metadata"]["name"],
                    "usedBy": using.get(r["metadata"]["name"], []),
                    "replaced": r["metadata"]["name"] in replaced,
                }
                for r in found
            ]
        )
        return
    rows = [
        (
            r["metadata"]["name"],
            r["spec"]["sequence"],
            "Replaced" if r["metadata"]["name"] in replaced else r["spec"]["stage"],
            " ".join(r["spec"].get("regions", [])),
            " ".join(using.get(r["metadata"]["name"], [])),
        )
        for r in found
    ]
    click.echo(table(("REVISION", "SEQUENCE", "STAGE", "CANARY REGIONS", "USED IN"), rows))
    for note in foreign_revision_notes(name, revisions, using, set(known)):
        click.echo(note)
    if name not in known:
        click.echo(f"policy {name}: deleted")
    if stop:
        click.echo(f"{stop['revision']}: stopped by its guard ({stop['action']}): {stop['message']}")


@policy.command("diff")
@click.argument("name", default="default")
@state_option
@output_option
def diff(name: str, state: str, output: str) -> int:
    """Compare the policy's rules with the active revision. Exits with 3 if they differ.

    \b
    Examples:
      holdfast policy diff default
    """
    with PolicyApi(state) as policies:
        current_rules = policies.policy(name)["spec"].get("rules", {})
        active = policies.active_revision()
    before = active["spec"].get("rules", {}) if active is not None else {}
    changed = {
        key: {"active": before.get(key), "policy": current_rules.get(key)}
        for key in sorted({*before, *current_rules})
        if before.get(key) != current_rules.get(key)
    }
    if output == "json":
        print_json(changed)
    elif not changed:
        click.echo(f"no difference to the active revision{_of_other_policy(active, name)}")
    else:
        if _of_other_policy(active, name):
            click.echo(f"compared with the active revision{_of_other_policy(active, name)}")
        for key, sides in changed.items():
            click.echo(f"{key}:\n  - {rule_text(sides['active'])}\n  + {rule_text(sides['policy'])}")
    return ExitCode.PLAN_CHANGES if changed else ExitCode.OK


def _of_other_policy(revision: dict[str, Any] | None, name: str) -> str:
    if revision is None or revision["spec"]["policy"] == name:
        return ""
    return f", {revision['metadata']['name']} of policy {revision['spec']['policy']}"


def _rules_of(file: str) -> dict[str, Any]:
    document = read_document(file)
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != "SchedulerPolicy":
        raise CommandError(
            f"{file}: wrong kind (expected SchedulerPolicy, found {kind or 'none'})", code=ExitCode.USAGE
        )
    spec = document.get("spec") or {}
    rules = spec.get("rules") or {} if isinstance(spec, dict) else None
    if not isinstance(rules, dict):
        raise CommandError(f"{file}: spec.rules must be an object", next_step="see docs/policies.md")
    return rules


@policy.command("shadow")
@click.argument("name", default="default")
@click.option("-f", "--file", "file", type=click.Path(exists=True, dir_okay=False), help="SchedulerPolicy to shadow.")
@state_option
@output_option
def shadow(name: str, file: str | None, state: str, output: str) -> None:
    """Evaluate new rules beside the active ones, without effect, and show the differences.

    Regions plan with both rule sets on the same state and record the shadow's choice in their Decisions. Without -f the
    policy's own rules are shadowed. Run the command again to see newer results.

    Every compared replica is in one of the four columns after REPLICAS. OTHER NODE counts other preemption victims too.
    Replicas that neither rule set places are not counted. A last line counts those of batches that were not compared.

    \b
    Examples:
      holdfast policy shadow default -f packing.yaml
      holdfast policy shadow default
    """
    spec: dict[str, Any] = {"stage": "Shadow", "canaryRegions": []}
    if file is not None:
        spec["rules"] = _rules_of(file)
    with PolicyApi(state) as policies:
        stage = policies.policy(name)["spec"].get("stage", "Active")
        if file is None and stage == "Active":
            raise CommandError(
                f"policy {name}: already active, so there is nothing to shadow",
                next_step=f"holdfast policy shadow {name} -f RULES.yaml",
                code=ExitCode.CONFLICT,
            )
        if file is not None or stage != "Shadow":
            policies.patch(name, spec)
            policies.wait_for_shadow_revision(name)
        shadowed = policies.shadow_comparison(name)
    if output == "json":
        print_json(shadowed)
        return
    click.echo(f"policy {name}: Shadow, revision {shadowed['revision'] or '(not created yet; run the command again)'}")
    rows = [
        (
            r["region"],
            r["decisions"],
            r["same"] + r["different"],
            r["same"],
            other_node(r),
            r["additional"],
            r["missing"],
        )
        for r in shadowed["regions"]
    ]
    columns = ("DECISIONS", "REPLICAS", "SAME NODE", "OTHER NODE", "ONLY SHADOW PLACES", "ONLY ACTIVE PLACES")
    click.echo(table(("REGION", *columns), rows))
    for line in shadowed["examples"]:
        click.echo(f"  {line}")
    if skipped := [f"{r['skipped']} in {r['region']}" for r in shadowed["regions"] if r["skipped"]]:
        click.echo(f"placed but not compared: {', '.join(skipped)}; {SKIPPED_WHY}")


def other_node(row: dict[str, Any]) -> int:
    """Replicas that both policies place, on different nodes. The recorded `different` also counts those that only one
    of them places."""
    return max(0, int(row["different"]) - int(row["additional"]) - int(row["missing"]))


@policy.command("promote")
@click.argument("name", default="default")
@click.option("--canary", multiple=True, metavar="REGION", help="Use the policy in this region only; may be repeated.")
@state_option
@output_option
def promote(name: str, canary: tuple[str, ...], state: str, output: str) -> None:
    """Activate the policy, in the canary regions or in all regions.

    Refused while another policy is in a stage other than Draft.

    \b
    Examples:
      holdfast policy promote default --canary eu-west
      holdfast policy promote default
    """
    stage = "Canary" if canary else "Active"
    with PolicyApi(state) as policies:
        refuse_second_policy(name, policies.policies())
        stored = policies.patch(name, {"stage": stage, "canaryRegions": list(canary)})
    _print(output, stored, f"policy {name}: {stage} in {', '.join(canary) if canary else 'all regions'}")
    if note := recovery_note(stored["spec"].get("rules", {})):
        print_note(note)


def recovery_note(rules: dict[str, Any]) -> str:
    """Says that recovery follows the filters, and which ones RecoveryBacked does not count; empty without filters."""
    import msgspec

    from holdfast.model.scheduler_policy import PolicyRules, filters_that_read_requests

    if not rules.get("filterExpressions"):
        return ""
    names = filters_that_read_requests(msgspec.convert(rules, PolicyRules))
    uncounted = f"; RecoveryBacked does not count {', '.join(names)}, because it reads the request" if names else ""
    return f"recovery replicas follow these filters too{uncounted}; next: holdfast plan --lose-region REGION"


def refuse_second_policy(name: str, policies: list[dict[str, Any]]) -> None:
    """The refusal of the API. The API does not give it for a policy that was active before the rule, which is not
    changed."""
    from holdfast.model.scheduler_policy import another_policy_text

    for other in policies:
        stage, named = other["spec"].get("stage", "Active"), other["metadata"]["name"]
        if named != name and stage != "Draft":
            text, _, step = another_policy_text(named, stage).partition("; next: ")
            raise CommandError(f"policy {name}: {text}", next_step=step, code=ExitCode.CONFLICT)


@policy.command("rollback")
@click.argument("name", default="default")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all regions use the rules.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=900.0, show_default=True, help="Seconds to wait."
)
@state_option
@output_option
def rollback(name: str, *, wait: bool, timeout_s: float, state: str, output: str) -> None:
    """Return to the rules before the present revision, as a new sequence number, and wait until all regions use them.

    From a draft, shadow or canary it returns to the active rules; from active rules to those that were active before
    them. So a second rollback returns to the rules that the first one removed, if they were active. For older rules,
    apply their policy file.

    Exits with 5 if --timeout expires. The rollback goes on then: a region that is out of touch takes the rules when it
    is back.

    \b
    Examples:
      holdfast policy rollback default
      holdfast policy rollback default --no-wait
    """
    with PolicyApi(state) as policies:
        current = policies.policy(name).get("status", {}).get("revision", "")
        revisions = policies.revisions(name)
        before = rollback_target(revisions, current)
        if before is None:
            others = [p["metadata"]["name"] for p in policies.policies() if p["metadata"]["name"] != name]
            step = f"holdfast policy list {name}"
            if others:
                step = f"set spec.stage of policy {name} to Draft, then holdfast policy promote {others[0]}"
            raise CommandError(f"policy {name}: no earlier active revision", next_step=step)
        rules = before["spec"].get("rules", {})
        stored = policies.patch(name, {"stage": "Active", "canaryRegions": [], "rules": rules})
        if wait:
            policies.wait_until_used(name, current, timeout_s)
    _print(output, stored, rollback_text(name, revisions, current, before))
