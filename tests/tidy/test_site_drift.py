"""What exists in the code is in the site, and what the site lists exists: kinds, fields, reasons, metrics, commands,
invariants, scenarios, drills, alerts, runbooks, routes, environment variables.

The names are read from the code and from the built pages, not from the generator of the pages.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import build_site
import msgspec
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from tests.tidy.test_docs import all_commands

from holdfast.cli.app import HIDDEN
from holdfast.drills.catalog import DRILLS
from holdfast.foundation import metrics
from holdfast.model.kinds import ALL, Kind
from holdfast.model.reasons import Reason
from holdfast.model.schema import Schema, object_schema
from holdfast.runbooks.catalog import RUNBOOKS
from holdfast.server.routes import ROUTES
from holdfast.sim.scenario_files import scenario_names

ROOT = Path(__file__).resolve().parents[2]
# Types whose fields are listed on the page of another kind.
ELSEWHERE = {"Template", "PlacementRules", "Rollout", "Batch", "Gang", "Exclusivity", "PolicyRules", "Condition"}
HOME_OF = {**dict.fromkeys(ELSEWHERE, "Workload"), "PolicyRules": "SchedulerPolicy"}


@pytest.fixture(scope="module")
def site() -> build_site.Site:
    return build_site.read_site()


def column(site: build_site.Site, page: str, number: int = 0) -> set[str]:
    """The names in code font that begin a column of the tables of a page."""
    rows = re.findall(r"<tr>\s*(<td>.*?)</tr>", site.pages[f"docs/{page}"].body, re.DOTALL)
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows]
    named = [re.match(r"<code>(.*?)</code>", row[number]) for row in cells if len(row) > number]
    return {html.unescape(match[1].replace("<wbr>", "")) for match in named if match}


def headings(site: build_site.Site, page: str) -> set[str]:
    return {heading.title for heading in site.pages[f"docs/{page}"].headings}


def kinds_in_code() -> set[str]:
    return {kind.name for kind in ALL}


def kinds_in_site(site: build_site.Site) -> set[str]:
    pages = [page for source, page in site.pages.items() if source.startswith("docs/reference/kinds/")]
    return {page.title for page in pages} - {"Metadata and conditions"}


def metrics_in_code() -> set[str]:
    declared = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    return {f"{m._name}_total" if m._type == "counter" else str(m._name) for m in declared}


def alerts_in_code() -> set[str]:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts" / "holdfast.rules.yaml").read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def runbooks_of_alerts() -> set[str]:
    return set(re.findall(r"runbook: (docs/runbooks/[\w-]+\.md)", alerts_text()))


def alerts_text() -> str:
    return (ROOT / "deploy" / "alerts" / "holdfast.rules.yaml").read_text()


def invariants_in_code() -> set[str]:
    """Names like S1 in the checkers of the simulation and in the product."""
    sources = [path.read_text() for path in (ROOT / "src" / "holdfast").rglob("*.py")]
    return {name for text in sources for name in re.findall(r"\bS[1-9]\d?\b", text)}


def environment_in_code() -> set[str]:
    sources = (ROOT / "src" / "holdfast").rglob("*.py")
    texts = [path.read_text() for path in sources if "samples" not in path.parts]
    return {name for text in texts for name in re.findall(r'"(HOLDFAST_[A-Z_]*[A-Z])"', text)}


def runbooks_in_site(site: build_site.Site) -> set[str]:
    """The runbooks that pages tell the reader to run."""
    texts = [html.unescape(re.sub(r"<[^>]+>", "", page.body)) for page in site.pages.values()]
    return {name for text in texts for name in re.findall(r"holdfast runbook run ([a-z][\w-]*)", text)}


def commands_in_code() -> set[str]:
    return {path for path, _ in all_commands() if path.split()[1] not in HIDDEN}


TABLES: dict[str, tuple[Callable[[], set[str]], Callable[[build_site.Site], set[str]]]] = {
    "kinds": (kinds_in_code, kinds_in_site),
    "reasons": (lambda: {reason.value for reason in Reason}, lambda site: column(site, "reasons.md")),
    "metrics": (metrics_in_code, lambda site: column(site, "metrics.md")),
    "commands": (commands_in_code, lambda site: {h for h in headings(site, "cli.md") if h.startswith("holdfast ")}),
    "scenarios": (lambda: set(scenario_names()), lambda site: column(site, "reference/scenarios.md")),
    "drills": (lambda: set(DRILLS), lambda site: column(site, "reference/drills.md")),
    "runbooks": (lambda: set(RUNBOOKS), runbooks_in_site),
    "alerts": (alerts_in_code, lambda site: column(site, "reference/alerts.md")),
    "routes": (lambda: {route.pattern for route in ROUTES}, lambda site: column(site, "reference/http-api.md", 1)),
    "invariants": (
        invariants_in_code,
        lambda site: set(re.findall(r"<td>(S\d+)</td>", site.pages["docs/reference/invariants.md"].body)),
    ),
    "environment": (
        environment_in_code,
        lambda site: {n for n in column(site, "reference/configuration.md") if n.startswith("HOLDFAST_")},
    ),
}


def differences(in_code: set[str], in_site: set[str]) -> list[str]:
    missing = [f"{name}: in the code, not in the site" for name in sorted(in_code - in_site)]
    return missing + [f"{name}: in the site, not in the code" for name in sorted(in_site - in_code)]


@pytest.mark.parametrize("table", TABLES)
def test_site_lists_exactly_what_the_code_has(table: str, site: build_site.Site) -> None:
    in_code, in_site = TABLES[table]
    assert in_code(), table
    assert differences(in_code(), in_site(site)) == [], "next: make docs"


@pytest.mark.parametrize("table", TABLES)
def test_name_that_is_removed_or_invented_is_found(table: str, site: build_site.Site) -> None:
    """The comparison can fail: one name less on either side is reported."""
    in_code, in_site = TABLES[table]
    one = sorted(in_code())[0]
    assert differences(in_code() - {one}, in_site(site)) == [f"{one}: in the site, not in the code"]
    assert differences(in_code(), in_site(site) - {one}) == [f"{one}: in the code, not in the site"]


# Fields ---------------------------------------------------------------------------------------------------------


def field_paths(kind: Kind) -> Iterator[str]:
    schema = object_schema(kind.type)
    for part, field in schema.fields.items():
        if part in ("spec", "status"):
            yield from nested_paths(kind, field, part)
        elif part not in ("apiVersion", "kind", "metadata"):
            yield from listed_paths(kind, field, part)


def listed_paths(kind: Kind, field: Schema, path: str) -> Iterator[str]:
    yield path
    mark = "[]" if field.items is not None else ".*" if field.values is not None else ""
    inner = field
    while not inner.fields and (inner.items or inner.values):
        inner = inner.items or inner.values or inner
    if inner.title not in ELSEWHERE or (HOME_OF[inner.title] == kind.name and inner.title != "Condition"):
        yield from nested_paths(kind, inner, path + mark)


def nested_paths(kind: Kind, schema: Schema, prefix: str) -> Iterator[str]:
    for name, field in schema.fields.items():
        yield from listed_paths(kind, field, f"{prefix}.{name}")


def fields_in_site(site: build_site.Site, kind: Kind) -> set[str]:
    return {name for name in column(site, f"reference/kinds/{kind.singular}.md") if "holdfast.dev" not in name}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_page_of_a_kind_lists_exactly_its_fields(kind: Kind, site: build_site.Site) -> None:
    in_code, in_site = set(field_paths(kind)), fields_in_site(site, kind)
    assert differences(in_code, in_site) == [], "next: make docs"
    for one in sorted(in_code)[:1]:  # the comparison can fail
        assert differences(in_code - {one}, in_site) == [f"{one}: in the site, not in the code"]
        assert differences(in_code, in_site - {one}) == [f"{one}: in the code, not in the site"]


@pytest.mark.parametrize("kind", [kind for kind in ALL if not kind.internal], ids=lambda kind: kind.name)
def test_page_of_a_kind_has_an_example_that_decodes(kind: Kind) -> None:
    path = ROOT / "docs" / "reference" / "examples" / f"{kind.singular}.yaml"
    data = yaml.safe_load(path.read_text())
    assert (data["apiVersion"], data["kind"]) == (kind.api_version, kind.name)
    msgspec.convert(data, kind.type)


def test_pages_name_only_fields_that_exist(site: build_site.Site) -> None:
    known: set[str] = set()
    for kind in ALL:
        for path in field_paths(kind):
            known.add(re.sub(r"\[\]|\.\*", "", path))
    records = ("docs/bugs.md", "docs/mutations.md", "docs/requirements.md", "CHANGELOG.md")
    wrong = []
    for source in site.pages:
        if source not in records and not source.startswith("docs/reference/kinds/"):
            named = re.findall(r"`((?:spec|status)(?:\.[a-zA-Z]+)+)(?=[`:\[ ])", (ROOT / source).read_text())
            wrong += [f"{source}: {name}" for name in named if name not in known]
    assert not wrong


# Runbooks -------------------------------------------------------------------------------------------------------


def test_every_runbook_is_in_the_site_and_every_alert_has_one(site: build_site.Site) -> None:
    pages = {source for source in site.pages if source.startswith("docs/runbooks/")}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert pages == files
    assert runbooks_of_alerts() <= pages
    listed = set(re.findall(r'href="\.\./(runbooks/[\w-]+)\.html"', site.pages["docs/reference/alerts.md"].body))
    assert {f"docs/{name}.md" for name in listed} == files


def test_every_reason_has_a_cure(site: build_site.Site) -> None:
    pattern = r"<tr>\s*<td><code>(\w+)</code></td>\s*<td>.*?</td>\s*<td>(.*?)</td>"
    rows = re.findall(pattern, site.pages["docs/reasons.md"].body.replace("<wbr>", ""), re.DOTALL)
    without = [reason for reason, cure in rows if not cure.strip()]
    assert len(rows) == len(Reason)
    assert not without, "add it to docs/cures.toml"
