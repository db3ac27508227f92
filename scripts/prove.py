"""`make prove`: every demonstration that takes longer than CI may, in named stages.

    make prove                       all of them, hours on two cores
    make prove STAGE=drills,kills    some
    make prove STAGE=list            what there is
    HOLDFAST_KILLS=10000 make prove STAGE=disks     in another size

Every test that is slow or starts platforms is run by exactly one stage: `platforms` and `slow` take all that no other
stage names. docs/proof.md says which promise each stage stands for.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from staged import Command, Say, Stage, run_stages

LOGS = Path(".prove")
PYTHON = ".venv/bin/python"
TEST_TIMEOUT_S = 3600
"""Of one test that names none itself; in its long size some take many minutes."""

NAMED = {
    "drills": (
        "tests/e2e/test_drill_failures.py", "tests/e2e/test_isolation.py", "tests/e2e/test_reclaim.py",
        "tests/e2e/test_restore.py", "tests/e2e/test_tenure.py",
    ),
    "kills": ("tests/e2e/test_agent_kills.py",),
    "disks": ("tests/store/test_sqlite_crash.py", "tests/store/test_sqlite_power.py"),
    "stores": ("tests/store/conformance",),
    "chaos": ("tests/etcd",),
    "requests": ("tests/api/test_bad_input.py", "tests/server/test_fuzz.py"),
    "thousand": ("tests/e2e/test_agent_thousand.py", "tests/e2e/test_agent_serving.py"),
}  # fmt: skip
"""Tests by the stage that runs them."""


def tests(marks: str, *places: str, **sizes: int | str) -> Command:
    """The tests with these marks in these places, in their long size; a missing tool fails them. A size that the
    environment names already is left as it is."""
    words = (PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", f"timeout={TEST_TIMEOUT_S}", "-m", marks)
    asked = {f"HOLDFAST_{name}": str(size) for name, size in sizes.items()}
    asked = {name: os.environ.get(name, size) for name, size in asked.items()}
    return Command((*words, *places), {"CI": "true", "PYTHONUNBUFFERED": "1", "HOLDFAST_PROVE": "1", **asked})


def rest(marks: str, *more: str) -> Command:
    """The tests with these marks that no stage names."""
    named = [place for places in NAMED.values() for place in places]
    return tests(marks, *more, *(f"--deselect={place}" for place in named))


def module(*words: str) -> Command:
    return Command((PYTHON, "-m", *words))


def stages(workers: int) -> tuple[Stage, ...]:
    several = ("--workers", str(workers))
    return (
        Stage("worlds", "600 simulated worlds", (module("holdfast.sim", "--seeds", "600", *several),), 10),
        Stage(
            "scenarios", "every scenario with every value, the leader dead at each of 300 awaits",
            (module("holdfast.sim", "--scenario", "all", "--every"),), 20,
        ),
        Stage(
            "planted", "every planted bug is caught, the control is clean",
            (module("holdfast.sim", "--plant", "all", "--seeds", "25", *several),), 5,
        ),
        Stage("slow", "slow tests in their long size", (rest("slow and not e2e", "-n", str(workers)),), 40),
        Stage(
            "disks", "20,000 power losses, 1,000 kills of SQLite",
            (tests("slow or not slow", *NAMED["disks"], POWER_LOSSES=20_000, KILLS=1_000),), 15,
        ),
        Stage(
            "stores", "100,000 operations with the same answers on memory, SQLite and etcd",
            (tests("not e2e", *NAMED["stores"], SCRIPT_OPERATIONS=100_000),), 60,
        ),
        Stage(
            "requests", "a million requests that no client would send",
            (tests("slow or not slow", *NAMED["requests"], FUZZ="long", FUZZ_STORMS=500),), 15,
        ),
        Stage(
            "chaos", "etcd and a region on it under faults, several times over",
            (tests("slow or e2e", *NAMED["chaos"], FAILOVER_ROUNDS=10, CHAOS_ROUNDS=3),), 40,
        ),
        Stage(
            "kills", "agents, watchdogs and cells killed 200 times under running work",
            (tests("e2e", *NAMED["kills"], KILL_ROUNDS=200),), 40,
        ),
        Stage("drills", "regions lost, cut off and restored, on the clock", (tests("e2e", *NAMED["drills"]),), 30),
        Stage("thousand", "a thousand replicas, forty under a rollout", (tests("e2e", *NAMED["thousand"]),), 25),
        Stage("platforms", "everything else that starts platforms", (rest("e2e"),), 25),
        Stage(
            "bench", "what is measured, within its bounds",
            (module("bench"), module("bench", "openb", "--trace", "all")), 60,
        ),
    )  # fmt: skip


def main(arguments: list[str], say: Say) -> int:
    parser = argparse.ArgumentParser(prog="prove", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stages", nargs="?", default="", help="names with commas; `list` for what there is")
    parser.add_argument("--workers", type=int, default=2, help="how many worlds run at once")
    chosen = parser.parse_args(arguments)
    known = {stage.name: stage for stage in stages(chosen.workers)}
    if chosen.stages == "list":
        for stage in known.values():
            say(f"{stage.name:10} about {stage.minutes:3} min  {stage.says}")
        return 0
    names = [name for name in chosen.stages.split(",") if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        say(f"prove: there is no stage {', '.join(unknown)}; there are: {', '.join(known)}")
        return 2
    return run_stages([known[name] for name in names], LOGS, say)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _say))
