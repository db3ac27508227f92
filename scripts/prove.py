"""`make prove`: the tests that are too long for CI, in named stages.

    make prove                       all stages, hours on two cores
    make prove STAGE=drills,kills    some stages
    make prove STAGE=list            list the stages
    HOLDFAST_KILLS=10000 make prove STAGE=disks     with another size

Every slow test and every test with platforms belongs to exactly one stage: `platforms` and `slow` run all tests that no
other stage names. docs/proof.md says which invariant each stage tests.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from staged import Command, Say, Stage, run_stages
from terminal import say

LOGS = Path(".prove")
PYTHON = ".venv/bin/python"
TEST_TIMEOUT_S = 3600
"""Timeout of a test without its own. Long sizes take many minutes."""

NAMED = {
    "drills": (
        "tests/e2e/test_double_restore.py",
        "tests/e2e/test_drill_failures.py",
        "tests/e2e/test_full_disk.py",
        "tests/e2e/test_isolation.py",
        "tests/e2e/test_reclaim.py",
        "tests/e2e/test_restore.py",
        "tests/e2e/test_tenure.py",
    ),
    "console": ("tests/e2e/test_console_fleet.py",),
    "kills": ("tests/e2e/test_agent_kills.py",),
    "disks": (
        "tests/store/test_sqlite_crash.py",
        "tests/store/test_sqlite_damage.py",
        "tests/store/test_sqlite_power.py",
    ),
    "stores": ("tests/store/conformance",),
    "chaos": ("tests/etcd",),
    "runbooks": ("tests/e2e/test_runbooks.py",),
    "alerts": ("tests/e2e/test_every_alert.py", "tests/e2e/test_notification_types.py"),
    "upgrade": ("tests/e2e/test_rolling_upgrade.py",),
    "requests": ("tests/api/test_bad_input.py", "tests/server/test_fuzz.py"),
    "install": ("tests/e2e/test_install.py", "tests/e2e/test_install_fleet.py", "tests/e2e/test_install_servers.py"),
    "thousand": ("tests/e2e/test_agent_thousand.py", "tests/e2e/test_agent_serving.py"),
}
"""Tests by stage."""


def tests(marks: str, *places: str, **sizes: int | str) -> Command:
    """The tests with these marks in these paths, in their long size. A missing tool fails them. Sizes in the
    environment take precedence."""
    arguments = (PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", f"timeout={TEST_TIMEOUT_S}", "-m", marks)
    sizes_given = {f"HOLDFAST_{name}": str(size) for name, size in sizes.items()}
    sizes_given = {name: os.environ.get(name, size) for name, size in sizes_given.items()}
    return Command((*arguments, *places), {"CI": "true", "PYTHONUNBUFFERED": "1", "HOLDFAST_PROVE": "1", **sizes_given})


def rest(marks: str, *more: str) -> Command:
    """The tests with these marks that belong to no other stage."""
    named = [place for places in NAMED.values() for place in places]
    return tests(marks, *more, *(f"--deselect={place}" for place in named))


def module(*arguments: str) -> Command:
    return Command((PYTHON, "-m", *arguments))


def stages(workers: int) -> tuple[Stage, ...]:
    several = ("--workers", str(workers))
    return (
        Stage("simulations", "600 simulations", (module("holdfast.sim", "--seeds", "600", *several),), 10),
        Stage(
            "scenarios",
            "every scenario with every value, the leader crashed at each of 300 awaits",
            (module("holdfast.sim", "--scenario", "all", "--every"),),
            20,
        ),
        Stage(
            "mutations",
            "every mutation is caught, the control passes",
            (module("holdfast.sim", "--mutation", "all", "--seeds", "25", *several),),
            5,
        ),
        Stage(
            "coverage",
            "branches of the deciding modules that 200 simulations take, 95 % expected",
            (Command((PYTHON, "scripts/branch_coverage.py", "--seeds", "200", *several)),),
            15,
        ),
        Stage(
            "mutants",
            "100 small code changes, of which tests and simulations notice 90 %",
            (Command((PYTHON, "scripts/mutate.py", "--sample", "100", *several)),),
            45,
        ),
        Stage("slow", "slow tests in their long size", (rest("slow and not e2e", "-n", str(workers)),), 40),
        Stage(
            "disks",
            "20,000 power losses, 1,000 kills of SQLite",
            (tests("slow or not slow", *NAMED["disks"], POWER_LOSSES=20_000, KILLS=1_000, FLIPS=10_000),),
            15,
        ),
        Stage(
            "stores",
            "100,000 operations with equal results on memory, SQLite and etcd",
            (tests("not e2e", *NAMED["stores"], SCRIPT_OPERATIONS=100_000),),
            60,
        ),
        Stage(
            "requests",
            "a million invalid requests",
            (tests("slow or not slow", *NAMED["requests"], FUZZ="long", FUZZ_STORMS=500),),
            15,
        ),
        Stage(
            "chaos",
            "etcd, and a region on etcd, under faults",
            (tests("slow or e2e", *NAMED["chaos"], FAILOVER_ROUNDS=10, CHAOS_ROUNDS=3),),
            40,
        ),
        Stage(
            "kills",
            "agents, watchdogs and cells killed 200 times while tasks run",
            (tests("e2e", *NAMED["kills"], KILL_ROUNDS=200),),
            40,
        ),
        Stage("drills", "regions lost, partitioned and restored", (tests("e2e", *NAMED["drills"]),), 30),
        Stage(
            "console",
            "the console with 5,000 nodes and 20,000 replicas: time to open, an hour of churn, ten open tabs",
            (tests("e2e", *NAMED["console"], CONSOLE_EVENTS=3_600, CONSOLE_SECONDS=60),),
            12,
        ),
        Stage("runbooks", "every runbook, on a platform of its own", (tests("e2e", *NAMED["runbooks"]),), 6),
        Stage(
            "alerts",
            "every alert fires by its cause and clears, under a real Prometheus, with a table of the times; "
            "every type of notification is sent by its cause",
            (tests("e2e", *NAMED["alerts"]),),
            25,
        ),
        Stage(
            "install",
            "three regions installed by the page, through a CA rotation, a restore, a lost region and upgrades; "
            "cells of three servers that lose some",
            (tests("e2e", *NAMED["install"]),),
            25,
        ),
        Stage(
            "upgrade",
            "a platform upgraded from the previous release and back, in both orders, while its tasks run",
            (tests("e2e", *NAMED["upgrade"]),),
            4,
        ),
        Stage("thousand", "a thousand replicas, and a rollout of forty", (tests("e2e", *NAMED["thousand"]),), 25),
        Stage(
            "clients",
            "every kubectl of this machine and the clients of PyPI and npm, with a table of the results",
            (Command((PYTHON, "scripts/client_table.py")),),
            10,
        ),
        Stage("platforms", "all other tests with platforms", (rest("e2e"),), 25),
        Stage(
            "bench",
            "all benchmarks, with their bounds",
            (module("bench"), module("bench", "openb", "--trace", "all")),
            60,
        ),
    )


def main(arguments: list[str], say: Say) -> int:
    parser = argparse.ArgumentParser(prog="prove", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stages", nargs="?", default="", help="stage names separated by commas, or `list`")
    parser.add_argument("--workers", type=int, default=2, help="number of parallel simulations")
    chosen = parser.parse_args(arguments)
    known = {stage.name: stage for stage in stages(chosen.workers)}
    if chosen.stages == "list":
        for stage in known.values():
            say(f"{stage.name:11} about {stage.minutes:3} min  {stage.description}")
        return 0
    names = [name for name in chosen.stages.split(",") if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        say(f"error: stage {', '.join(unknown)}: not found (expected one of {', '.join(known)})")
        return 2
    return run_stages([known[name] for name in names], LOGS, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], say))
