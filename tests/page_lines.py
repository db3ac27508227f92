"""Pages whose indented command lines are run one by one, and the lines that are not, each with the reason.

Used by tests/e2e/test_page_lines.py, which runs the lines on a real platform, and by tests/tidy/test_page_commands.py,
which fails for a page that is in neither table.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

DOCS = Path(__file__).parent.parent / "docs"
_LINE = re.compile(r"^ {4}((?:holdfast|kubectl) .*)$", re.MULTILINE)
_PROSE = re.compile(r" {2,}(?![-#])")

EXAMPLE_POLICY = "$EXAMPLES/policies/packing.yaml"
NEW_WORKLOAD = (
    '{"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": "new", "namespace": "payments"}, '
    '"spec": {"replicas": 1, "template": {"command": ["sleep", "60"], "resources": {"cpu": "10m", "memory": "16Mi"}}}}'
)
STATE_OF_A_CELL = ("/var/lib/holdfast/us-east", '"$HOLDFAST_STATE/cells/us-east"')


class PageLines(msgspec.Struct, frozen=True):
    """`setup` are commands before the first line, `changes` are what a reader replaces; `not_run` says why a line that
    starts so is not run."""

    changes: tuple[tuple[str, str], ...] = ()
    not_run: dict[str, str] = {}
    setup: str = ""
    endless: tuple[str, ...] = ()
    """Beginnings of lines that run until their reader ends them."""

    def command(self, line: str) -> str:
        """The line as the reader types it."""
        is_endless = line.startswith(self.endless)
        for old, new in self.changes:
            line = line.replace(old, new)
        return f"timeout 5 {line} || test $? = 124" if is_endless else line


PAGES = {
    "how-to/reach.md": PageLines(  # first: it names the first attempt of a replica
        setup="echo setting > app.conf",
        changes=((" -- sh", " -- sh -c 'echo ok' < /dev/null"), ("/tmp/dump", "/tmp/app.conf"), ("8080:http", ":http")),
        endless=(
            "kubectl -n payments port-forward",
            "kubectl -n payments attach",
            "kubectl -n payments logs -f",
            "holdfast port-forward",
            "holdfast attach",
        ),
        not_run={
            "holdfast logs analytics/nightly": "the platform has no such job; tests/e2e/test_reach.py",
            "kubectl --context us-east -n analytics logs": "the platform has no such job; tests/e2e/test_reach.py",
            "kubectl --context us-east -n payments delete": "429 until its budget permits it; tests/e2e/test_reach.py",
            "holdfast logs payments/risk-api-us-east-0 --previous": "no earlier run; tests/e2e/test_reach.py",
        },
    ),
    "access.md": PageLines(
        changes=(
            ("user add ann ", "user add anna "),
            ("user add bob ", "user add bobby "),
            ("--user bob > bob.", "--user bobby > bob."),
            ("user remove bob ", "user remove bobby "),
            ("/etc/prometheus/", ""),
            ("--public-key audit.pub", '--public-key "$HOLDFAST_STATE/cells/global/audit.pub"'),
        ),
        endless=("holdfast audit tail",),
        not_run={
            "holdfast serve …": "needs an issuer; tests/identity/test_oidc.py has one",
            "holdfast break-glass review": "the name is generated; tests/e2e/test_every_alert.py reviews a session",
        },
    ),
    "how-to/maintenance.md": PageLines(
        not_run={"holdfast maintenance end": "the name is generated; tests/e2e/test_scheduled_drills.py ends one"}
    ),
    "operations/many-machines.md": PageLines(
        not_run={
            "holdfast credentials revoke": "ends the region; tests/e2e/test_isolation.py revokes a region and a node"
        }
    ),
    "how-to/secrets.md": PageLines(setup="echo -n secret > password"),
    "policies.md": PageLines(
        setup=f"echo '{NEW_WORKLOAD}' > workload.json",
        changes=(
            (
                "-f WORKLOAD.yaml --policy FILE",
                f"-f workload.json --policy {EXAMPLE_POLICY} || test $? = 3",
            ),  # a change
            ("--last 200", "--last 200 || test $? = 3"),  # some decisions differ
            ("--policy FILE", f"--policy {EXAMPLE_POLICY}"),
            ("-f packing.yaml", f"-f {EXAMPLE_POLICY}"),
        ),
        not_run={"holdfast replay TENANT/DECISION": "the name is generated; tests/e2e/test_scheduling_commands.py"},
    ),
    "autoscaling.md": PageLines(
        not_run={"holdfast pool provide": "`holdfast up` runs one; tests/e2e/test_autoscaling.py"}
    ),
    "agent.md": PageLines(
        changes=(
            ("NODE", "eu-central-1"),
            ("TENANT/WORKLOAD", "payments/risk-api"),
            ("--format json|http-sd|nginx|haproxy", "--format nginx"),
            (" [--to REVISION]", ""),
            ("pause|resume", "pause"),
            (" [--by workload|replica]", " --by workload"),
            ("TENANT/REPLICA -- COMMAND", "payments/risk-api-us-east-0 -- true"),
            ("payments/risk-api -f", "payments/risk-api"),
        ),
        not_run={
            "holdfast agent --name": "a process that runs on; tests/e2e/test_agent_joining.py",
            "holdfast node revoke": "the node would be lost; tests/e2e/test_agent_joining.py",
            "kubectl cordon|drain": "tests/e2e/test_agent_kubectl.py",
            "holdfast endpoints TENANT/WORKLOAD --format haproxy --write": "runs on; tests/e2e/test_agent_serving.py",
            "holdfast rollout undo": "no earlier revision; docs/tutorials/rollout.md",
            "kubectl -n TENANT logs -f": "tests/e2e/test_reach.py",
        },
    ),
    "operations/backup.md": PageLines(
        changes=(STATE_OF_A_CELL, ("/var/lib/holdfast-backups", "backups")),
        not_run={
            "holdfast restore": "the cell must be stopped; tests/e2e/test_restore.py",
            "holdfast migrate-store": "needs an etcd; tests/etcd/test_backup.py",
        },
    ),
    "runbooks/backup-too-old.md": PageLines(changes=(STATE_OF_A_CELL,)),
    "runbooks/certificate-expiry.md": PageLines(),
    "runbooks/policy-stopped.md": PageLines(),
    "runbooks/autoscaler-pause.md": PageLines(
        changes=(("--tenant T --workload W", "--tenant payments --workload risk-api --yes"),)
    ),
    "runbooks/store-lost.md": PageLines(changes=(STATE_OF_A_CELL,)),
    "runbooks/stuck-repair.md": PageLines(
        changes=(("--region R", "--region eu-west --yes"),),
        not_run={"holdfast repair finalizer": "needs an overdue finalizer; tests/e2e/test_overdue_finalizer.py"},
    ),
    "readiness.md": PageLines(
        changes=(("holdfast readiness", "holdfast readiness || test $? = 1"),),  # cells without a backup are a problem
        not_run={"holdfast readiness --state kubeconfig": "needs Prometheus; tests/readiness/test_fleet_review.py"},
    ),
}
RUN_OTHERWISE = {
    "etcd.md": "tests/etcd/fleet.py starts the same processes for tests/etcd/test_chaos.py",
    "how-to/entry-proxy.md": "tests/e2e/test_entry_proxy.py",
    "how-to/persistent-volumes.md": "tests/e2e/test_persistent_volumes.py",
    "how-to/run-an-image.md": "tests/e2e/test_private_images.py, with a registry",
    "how-to/service-discovery.md": "tests/e2e/test_shop.py",
    "operations/install.md": "tests/e2e/test_install.py",
    "overrides.md": "only without the global cell; tests/e2e/test_isolation.py",
    "runbooks/region-holds-work.md": "only with a lost global store; tests/e2e/test_lost_global_store.py",
    "tutorials/shop.md": "tests/e2e/test_drill_failures.py loses a region by this drill",
}
"""Pages whose command lines need more than a platform, and the test that does the same."""
GENERATED = {"cli.md"}


def command_lines(page: str) -> list[str]:
    """The lines, without the explanation that three or more spaces divide from a command."""
    text = (DOCS / page).read_text()
    return [_PROSE.split(line, maxsplit=1)[0].rstrip() for line in _LINE.findall(text)]


def pages_with_lines() -> set[str]:
    return {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if _LINE.search(path.read_text()) and "decisions" not in path.parts
    } - GENERATED
