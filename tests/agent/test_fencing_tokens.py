"""Fencing tokens: they rise with every placement of an ordinal, and a database that compares them refuses an instance
that was paused while its successor began.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import config, eventually
from tests.factories import replica

from holdfast.agent.status_blocks import environment
from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.fencing_token import SOURCE_REVISION_ANNOTATION, fencing_token
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Template
from holdfast.model.workload import ExclusiveScope, Exclusivity
from holdfast.samples.ledger import STALE_EXIT_CODE, FencedLedger, StaleInstance

EXCLUSIVE = Exclusivity(scope=ExclusiveScope.GLOBAL)
TEMPLATE = Template(command=("true",))


def token(source_revision: int, replica_revision: int) -> str:
    made = replica()
    made = msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, resource_version=str(replica_revision)),
        spec=msgspec.structs.replace(made.spec, exclusive=EXCLUSIVE),
    )
    meta = ObjectMeta(name="a", namespace="acme", annotations={SOURCE_REVISION_ANNOTATION: str(source_revision)})
    spec = AssignmentSpec(workload="w", workload_uid="u", region="r", revision="1", template=TEMPLATE)
    return fencing_token(Assignment(meta, spec), made)


def test_token_rises_with_binds_of_a_region_and_with_moves_between_regions() -> None:
    placements = [(5, 900), (5, 901), (5, 1000), (6, 3), (255, 4), (256, 2**32), (2**40, 1), (2**40, 2**62)]
    tokens = [token(*placement) for placement in placements]
    assert tokens == sorted(tokens) and len(set(tokens)) == len(tokens)
    assert len({len(one) for one in tokens}) == 1, "tokens of one width compare as texts"
    assert fencing_token(None, replica()) == "", "other work has none"


def test_task_gets_token_and_ordinal_of_exclusive_work_only() -> None:
    spec = BindingSpec(
        replica="ledger-eu-west-r3",
        intent=Intent(replica_uid="u", template_hash="h", attempt=1),
        node="n1",
        template=TEMPLATE,
        fencing_token="7.9",
    )
    binding = Binding(metadata=ObjectMeta(name="b", namespace="bank"), spec=spec)
    env = environment(binding, config())
    assert (env["HOLDFAST_FENCING_TOKEN"], env["HOLDFAST_ORDINAL"]) == ("7.9", "3")
    plain = msgspec.structs.replace(binding, spec=msgspec.structs.replace(spec, fencing_token=""))
    assert "HOLDFAST_FENCING_TOKEN" not in environment(plain, config())


def start(db: Path, name: str, held: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "LEDGER_DB": str(db),
        "LEDGER_EVERY_S": "0.02",
        "HOLDFAST_TENANT": "bank",
        "HOLDFAST_WORKLOAD": "ledger",
        "HOLDFAST_ORDINAL": "0",
        "HOLDFAST_REPLICA": name,
        "HOLDFAST_FENCING_TOKEN": held,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.samples.ledger"], env=env, stderr=subprocess.PIPE, text=True
    )


def entries(db: Path) -> list[str]:
    """The tokens of all entries, in order."""
    try:
        with sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=30.0) as opened:
            return [row[0] for row in opened.execute("SELECT token FROM entry ORDER BY id")]
    except sqlite3.OperationalError:
        return []


def pause_between_writes(process: subprocess.Popen[str], db: Path) -> bool:
    """Pauses the process. If it paused within a transaction, which locks the SQLite file, it is resumed."""
    process.send_signal(signal.SIGSTOP)
    try:
        with sqlite3.connect(db, isolation_level=None, timeout=0.2) as opened:
            opened.execute("BEGIN IMMEDIATE")
            opened.execute("ROLLBACK")
        return True
    except sqlite3.OperationalError:
        process.send_signal(signal.SIGCONT)
        return False


async def test_instance_paused_while_its_successor_begins_writes_nothing_more(tmp_path: Path) -> None:
    """All processes of a node are paused, so neither shim nor guard can end the work before its lease."""
    db = tmp_path / "ledger.sqlite"
    old_token, new_token = token(5, 900), token(6, 3)
    old = start(db, "ledger-us-east-0", old_token)
    new: subprocess.Popen[str] | None = None
    try:
        await eventually(lambda: len(entries(db)) >= 3)
        await eventually(lambda: pause_between_writes(old, db))
        new = start(db, "ledger-eu-west-0", new_token)
        await eventually(lambda: entries(db).count(new_token) >= 3)
        old.send_signal(signal.SIGCONT)
        assert old.wait(20) == STALE_EXIT_CODE
        assert old.stderr is not None and "is older than" in old.stderr.read()
        written = entries(db)
        began = written.index(new_token)
        assert set(written[:began]) == {old_token} and set(written[began:]) == {new_token}
    finally:
        for process in (old, new):
            if process is not None:
                process.kill()
                process.wait()


def test_ledger_refuses_lower_token_and_rolls_back(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.sqlite")
    first, second = FencedLedger(path, "bank/ledger/0", "a.1"), FencedLedger(path, "bank/ledger/0", "a.2")
    first.write("one")
    second.write("two")
    with pytest.raises(StaleInstance):
        first.write("three")
    second.write("four")
    FencedLedger(path, "bank/ledger/1", "a.0").write("another ordinal has its own fence")
    assert entries(tmp_path / "ledger.sqlite") == ["a.1", "a.2", "a.2", "a.0"]
