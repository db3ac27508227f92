"""Pages of what tenants own beside workloads: schedules, Secrets and ConfigMaps, and who may do what.

The values of Secrets never pass through here: a stored Secret is sealed, and its keys with it.
"""

from __future__ import annotations

from holdfast.console.answers import AnswerRow
from holdfast.console.global_reads import GlobalReader
from holdfast.console.viewer import Viewer, read_refusal
from holdfast.gate.authorize import access_refusal
from holdfast.model.break_glass_session import BreakGlassSession
from holdfast.model.config_references import referenced_objects
from holdfast.model.cron_workload import CronWorkload
from holdfast.model.labels import LABEL_CRON_WORKLOAD
from holdfast.model.principal import from_identity
from holdfast.model.rbac import ClusterRoleBinding, RoleBinding
from holdfast.model.secret import ConfigMap, Secret, content_bytes
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload

# Rows of one table. The page says how many more there are.
ROWS_MAX = 300
# Newest runs of a schedule, and workloads that use a Secret or ConfigMap, that a row names.
NAMED_MAX = 5

Parameters = dict[str, str]


class RunLine(AnswerRow, frozen=True, kw_only=True):
    name: str
    state: str
    created_at: str = ""


class ScheduleRow(AnswerRow, frozen=True, kw_only=True):
    tenant: str
    name: str
    schedule: str
    time_zone: str
    concurrency: str
    suspended: bool
    next_at: str = ""
    last_at: str = ""
    last_success_at: str = ""
    active: int = 0
    missed: int = 0
    missed_message: str = ""
    runs: tuple[RunLine, ...] = ()


class SchedulePage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[ScheduleRow, ...]
    total: int


def schedule_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> SchedulePage:
    found = [c for c in reader.view.list(CronWorkload) if viewer.sees(c.metadata.namespace)]
    runs: dict[tuple[str, str], list[Workload]] = {}
    for workload in reader.view.list(Workload):
        cron = workload.metadata.labels.get(LABEL_CRON_WORKLOAD, "")
        if cron:
            runs.setdefault((workload.metadata.namespace, cron), []).append(workload)
    found.sort(key=lambda c: (c.metadata.namespace, c.metadata.name))
    rows = [_schedule(c, runs.get((c.metadata.namespace, c.metadata.name), [])) for c in found[:ROWS_MAX]]
    return SchedulePage(rows=tuple(rows), total=len(found))


def _schedule(cron: CronWorkload, runs: list[Workload]) -> ScheduleRow:
    spec, status = cron.spec, cron.status
    newest = sorted(runs, key=lambda w: w.metadata.creation_timestamp, reverse=True)[:NAMED_MAX]
    return ScheduleRow(
        tenant=cron.metadata.namespace,
        name=cron.metadata.name,
        schedule=spec.schedule,
        time_zone=spec.time_zone,
        concurrency=spec.concurrency_policy.value,
        suspended=spec.suspend,
        next_at=status.next_schedule_time,
        last_at=status.last_schedule_time,
        last_success_at=status.last_successful_time,
        active=len(status.active),
        missed=status.missed.count if status.missed is not None else 0,
        missed_message=status.missed.message if status.missed is not None else "",
        runs=tuple(
            RunLine(name=w.metadata.name, state=_run_state(w), created_at=w.metadata.creation_timestamp) for w in newest
        ),
    )


def _run_state(run: Workload) -> str:
    held = {c.type for c in run.status.conditions if c.status == "True"}
    return "Failed" if "Failed" in held else "Complete" if "Complete" in held else "Active"


class ConfigRow(AnswerRow, frozen=True, kw_only=True):
    """`keys` and `size_bytes` are those of a ConfigMap. A Secret shows neither: they are sealed."""

    kind: str
    tenant: str
    name: str
    type: str = ""
    keys: tuple[str, ...] = ()
    size_bytes: int = 0
    immutable: bool = False
    sealed_with: str = ""
    used_by: tuple[str, ...] = ()
    users: int = 0
    created_at: str = ""


class ConfigPage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[ConfigRow, ...]
    total: int
    missing: tuple[str, ...] = ()
    """Secrets and ConfigMaps that a workload needs and that do not exist."""
    secrets: bool = True
    """Whether the caller may list Secrets anywhere."""


def config_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> ConfigPage:
    who = from_identity(viewer.name, viewer.groups, credential="console")

    def may_list(plural: str, tenant: str) -> bool:
        return viewer.sees(tenant) and access_refusal(who, "list", plural, namespace=tenant) is None

    users: dict[tuple[str, str, str], list[str]] = {}
    for workload in reader.view.list(Workload):
        for wanted in referenced_objects(workload.spec.template):
            key = (wanted.kind, workload.metadata.namespace, wanted.name)
            users.setdefault(key, []).append(workload.metadata.name)
    rows: list[ConfigRow] = []
    for config in reader.view.list(ConfigMap):
        if may_list("configmaps", config.metadata.namespace):
            names = users.get(("ConfigMap", config.metadata.namespace, config.metadata.name), [])
            rows.append(
                ConfigRow(
                    kind="ConfigMap",
                    tenant=config.metadata.namespace,
                    name=config.metadata.name,
                    keys=tuple(sorted((*config.data, *config.binary_data)))[:ROWS_MAX],
                    size_bytes=content_bytes(config),
                    immutable=config.immutable,
                    used_by=tuple(sorted(names))[:NAMED_MAX],
                    users=len(names),
                    created_at=config.metadata.creation_timestamp,
                )
            )
    for secret in reader.view.list(Secret):
        if may_list("secrets", secret.metadata.namespace):
            names = users.get(("Secret", secret.metadata.namespace, secret.metadata.name), [])
            rows.append(
                ConfigRow(
                    kind="Secret",
                    tenant=secret.metadata.namespace,
                    name=secret.metadata.name,
                    type=secret.type,
                    immutable=secret.immutable,
                    sealed_with=secret.sealed.key if secret.sealed is not None else "",
                    used_by=tuple(sorted(names))[:NAMED_MAX],
                    users=len(names),
                    created_at=secret.metadata.creation_timestamp,
                )
            )
    there = {(row.kind, row.tenant, row.name) for row in rows}
    missing = sorted(
        f"{kind} {tenant}/{name}"
        for kind, tenant, name in users.keys() - there
        if may_list("secrets" if kind == "Secret" else "configmaps", tenant)
    )
    rows.sort(key=lambda row: (row.tenant, row.kind, row.name))
    anywhere = read_refusal(viewer, "secrets") is None or any(may_list("secrets", t) for t in viewer.tenants or ())
    return ConfigPage(rows=tuple(rows[:ROWS_MAX]), total=len(rows), missing=tuple(missing[:20]), secrets=anywhere)


class BindingRow(AnswerRow, frozen=True, kw_only=True):
    name: str
    tenant: str
    """Empty: the role applies to all tenants."""
    role: str
    role_kind: str
    subjects: tuple[str, ...]
    created_at: str = ""


class GlassRow(AnswerRow, frozen=True, kw_only=True):
    """`state` is Open, Closed, Expired or Reviewed: only an open one gives rights."""

    name: str
    requester: str
    tenant: str
    reason: str
    rights: str
    state: str
    created_at: str
    ends_at_s: float
    reviewer: str = ""
    note: str = ""


class AccessPage(AnswerRow, frozen=True, kw_only=True):
    bindings: tuple[BindingRow, ...]
    total: int
    sessions: tuple[GlassRow, ...]
    unreviewed: int


def access_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> AccessPage:
    everywhere = (
        list(reader.view.list(ClusterRoleBinding)) if read_refusal(viewer, "clusterrolebindings") is None else []
    )
    bound: list[ClusterRoleBinding | RoleBinding] = [*everywhere]
    bound += [b for b in reader.view.list(RoleBinding) if viewer.sees(b.metadata.namespace)]
    bindings = [
        BindingRow(
            name=b.metadata.name,
            tenant=b.metadata.namespace,
            role=b.role_ref.name,
            role_kind=b.role_ref.kind,
            subjects=tuple(f"{s.kind} {s.name}" for s in b.subjects)[:20],
            created_at=b.metadata.creation_timestamp,
        )
        for b in bound
    ]
    now_s = reader.ports.clock.now()
    sessions = [
        _glass(s, now_s)
        for s in reader.view.list(BreakGlassSession)
        if (viewer.sees(s.spec.tenant) if s.spec.tenant else viewer.tenants is None)
    ]
    sessions.sort(key=lambda row: row.created_at, reverse=True)
    unreviewed = sum(row.state in ("Closed", "Expired") for row in sessions)
    return AccessPage(
        bindings=tuple(bindings[:ROWS_MAX]),
        total=len(bindings),
        sessions=tuple(sessions[:ROWS_MAX]),
        unreviewed=unreviewed,
    )


def _glass(session: BreakGlassSession, now_s: float) -> GlassRow:
    spec = session.spec
    ended = "Closed" if spec.closed else "Expired" if now_s >= session.ends_s else ""
    return GlassRow(
        name=session.metadata.name,
        requester=spec.requester,
        tenant=spec.tenant,
        reason=spec.reason,
        rights=f"{', '.join(spec.verbs)} on {', '.join(spec.resources)}",
        state="Reviewed" if spec.review is not None else ended or "Open",
        created_at=session.metadata.creation_timestamp,
        ends_at_s=parse_time(session.metadata.creation_timestamp) + spec.duration_seconds,
        reviewer=spec.review.reviewer if spec.review is not None else "",
        note=spec.review.note if spec.review is not None else "",
    )
