"""Placement quality: the openb GPU trace (Alibaba cluster-trace-gpu-v2023), replayed on the planner.

Protocol of the published results (Weng et al., ATC 2023): pods arrive in the given order of each seed, never leave, and
are dropped if they do not fit; equal scores go to the node with the lowest given rank; GPU allocation is read when the
arrived load reaches a percentage of the cluster's GPUs. Data: `--data DIR`, default ../shared/data.

By default the trace `default` runs with ten seeds. `--trace all` runs all seventeen and compares the policy
examples/policies/gpu-shape.yaml with the published best fit and fragmentation gradient.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.__main__ import Skipped, Unknown
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Device, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import ReplicaRequirements, plan, requirements_of
from holdfast.scheduling.snapshot import SnapshotBuilder

HOME = Path(__file__).resolve().parents[2] / "shared" / "data"
SEEDS = tuple(range(42, 52))
LOAD = 130
WORKERS = 2
_TIE_SEED = 0


SHIPPED = "gpu-shape"
"""The policy to which the bounds apply."""
_PUBLISHED = {"best-fit": "05-BestFit", "gradient": "06-FGD"}

BOUNDS = {"allocation_pct_default_130": (95.3, None), "traces_not_better_than_best_fit": (None, 0)}


def _shipped(name: str) -> PolicyRules:
    """The rules of a policy in examples/policies."""
    manifest = msgspec.yaml.decode((EXAMPLES / f"{name}.yaml").read_bytes())
    return msgspec.convert(manifest["spec"]["rules"], PolicyRules)


EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "policies"
POLICIES: dict[str, PolicyRules] = {
    "built-in": PolicyRules(),
    "packing": _shipped("packing"),
    SHIPPED: _shipped(SHIPPED),
}


class TraceNode(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]

    @property
    def asked_gpu_milli(self) -> int:
        return self.gpus * self.gpu_milli


def replay(
    nodes: Sequence[TraceNode],
    pods: Mapping[str, TracePod],
    order: Sequence[str],
    ranks: Mapping[str, int],
    policy: str,
) -> dict[int, float]:
    """GPU allocation in percent of the cluster, by percent of load arrived; one plan for the whole trace."""
    builder = SnapshotBuilder("trace")
    for node in nodes:
        builder.upsert(_node(node))
    snapshot = builder.freeze(1)
    numbers = np.zeros(len(snapshot.static.nodes), dtype=np.int64)
    for name, slot in snapshot.slots.items():
        numbers[slot] = ranks[name]
    snapshot.memoize(("tie", _TIE_SEED), numbers)
    requested = [pods[name] for name in order]
    planned = plan(
        snapshot, [_ask(pod, number) for number, pod in enumerate(requested)], POLICIES[policy], 0.0, _TIE_SEED
    )
    placed = [bool(outcome.proposals) for outcome in planned.request_plans]
    return curve(sum(node.gpus for node in nodes) * 1000, requested, placed)


def curve(capacity_milli: int, requested: Sequence[TracePod], placed: Sequence[bool]) -> dict[int, float]:
    found: dict[int, float] = {}
    arrived = allocated = 0
    for pod, took in zip(requested, placed, strict=True):
        arrived += pod.asked_gpu_milli
        allocated += pod.asked_gpu_milli if took else 0
        for load in range(len(found), round(100 * arrived / capacity_milli) + 1):
            found[load] = 100 * allocated / capacity_milli
    return found


def _node(node: TraceNode) -> Node:
    spec = NodeSpec(
        zone="trace",
        capacity={"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi"},
        devices=tuple(Device(id=f"gpu-{number}", model=node.model) for number in range(node.gpus)),
    )
    status = NodeStatus(
        contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True)
    )
    return Node(ObjectMeta(name=node.name, uid=node.name), spec, status)


def _ask(pod: TracePod, number: int) -> ReplicaRequirements:
    name = f"pod-{number}"
    resources = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi", "gpu": f"{pod.asked_gpu_milli}m"}
    template = Template(
        command=("run",),
        resources={resource: text for resource, text in resources.items() if not text.startswith("0")},
        gpu_models=pod.models,
    )
    spec = SchedulingRequestSpec(
        workload=name, assignment=name, revision="1", template=template, members=(RequestMember(name=name, uid=name),)
    )
    return requirements_of(SchedulingRequest(metadata=ObjectMeta(name=name, namespace="trace"), spec=spec))


# Reading


class Trace(msgspec.Struct, frozen=True):
    nodes: tuple[TraceNode, ...]
    pods: dict[str, TracePod]
    orders: dict[int, list[str]]
    ranks: dict[int, dict[str, int]]


def load(data: Path, name: str) -> Trace:
    home = data / "openb"
    files = [home / "csv" / "openb_node_list_gpu_node.csv.gz", home / "csv" / f"openb_pod_list_{name}.csv.gz"]
    if not all(file.exists() for file in files):
        raise Skipped(f"no trace in {data}; next: --data DIR with the directory that contains openb/")
    nodes = tuple(
        TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(files[0])
    )
    pods = {row["name"].removeprefix("openb-pod-"): _pod(row) for row in _rows(files[1])}
    orders: dict[int, list[str]] = {}
    for line in _lines(home / "derived" / f"arrival_order_{name}.txt.gz"):
        if line.startswith("#"):
            arriving = orders[int(line.split()[2])] = []
        else:
            arriving.append(line.partition("-")[0])  # "-tuned-N" marks another copy of a pod
    ranks = {
        int(row["seed"]): {f"openb-node-{number}": int(rank) for number, rank in row.items() if number.isdigit()}
        for row in _rows(home / "derived" / "node_tiebreak_rank.csv.gz")
        if row["trace"] == name
    }
    return Trace(nodes, pods, orders, ranks)


def _pod(row: Mapping[str, str]) -> TracePod:
    models = tuple(part for part in row.get("gpu_spec", "").split("|") if part)
    return TracePod(
        row["name"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), int(row["gpu_milli"]), models
    )


def _rows(path: Path) -> Iterable[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def _lines(path: Path) -> Iterable[str]:
    with gzip.open(path, "rt") as file:
        yield from (line.strip() for line in file if line.strip())


def _run_one(data: str, name: str, policy: str, seed: int) -> float:
    """Allocation at full load for one seed. Runs in a worker process."""
    trace = load(Path(data), name)
    return replay(trace.nodes, trace.pods, trace.orders[seed], trace.ranks[seed], policy)[LOAD]


def every_trace(data: Path) -> tuple[str, ...]:
    """All traces with an arrival order, `default` first."""
    files = sorted((data / "openb" / "derived").glob("arrival_order_*.txt.gz"))
    names = [file.name.removeprefix("arrival_order_").removesuffix(".txt.gz") for file in files]
    return ("default", *(name for name in names if name != "default"))


def published(data: Path) -> dict[tuple[str, str], float]:
    """Published means over ten seeds at full load, by trace and policy."""
    found: dict[tuple[str, str], float] = {}
    summary = data / "openb" / "expected" / "reference_summary.csv"
    with summary.open() as file:
        for row in csv.DictReader(file):
            for name, theirs in _PUBLISHED.items():
                if (row["policy"], row["metric"], row["load_pct"]) == (theirs, "gpu_alloc_pct", str(LOAD)):
                    found[row["trace"].removeprefix("openb_pod_list_"), name] = float(row["mean"])
    return found


async def run(
    *, data: str = "", traces: Sequence[str] = ("default",), policies: Sequence[str] = (), seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """Mean over the seeds at full load for each trace and policy, with the published values."""
    place = data or str(HOME)
    load(Path(place), "default")  # says what is missing before anything is started
    whole = "all" in traces
    names = every_trace(Path(place)) if whole else tuple(traces)
    chosen = policies or ((SHIPPED,) if whole else tuple(POLICIES))
    _check(Path(place), names, chosen)
    theirs = published(Path(place))
    figures: dict[str, Any] = {}
    behind = 0
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(WORKERS) as workers:
        for name in names:
            for policy in chosen:
                jobs = (loop.run_in_executor(workers, _run_one, place, name, policy, seed) for seed in seeds)
                figures[f"{name}_{policy}_{LOAD}"] = round(statistics.mean(await asyncio.gather(*jobs)), 2)
            for known in _PUBLISHED:
                figures[f"{name}_published_{known}_{LOAD}"] = round(theirs[name, known], 2)
            if SHIPPED in chosen:
                behind += figures[f"{name}_{SHIPPED}_{LOAD}"] <= figures[f"{name}_published_best-fit_{LOAD}"]
            measured = {key: value for key, value in figures.items() if key.startswith(f"{name}_")}
            print(f"  {name}: {measured}", file=sys.stderr, flush=True)
    if SHIPPED not in chosen:
        return figures
    main = {"allocation_pct_default_130": figures[f"default_{SHIPPED}_{LOAD}"]} if "default" in names else {}
    return {**main, "traces_not_better_than_best_fit": behind, "traces": len(names), "seeds": len(seeds), **figures}


def _check(data: Path, traces: Sequence[str], policies: Sequence[str]) -> None:
    known = every_trace(data)
    unknown = [name for name in traces if name not in known]
    if unknown:
        raise Unknown(f"trace {', '.join(unknown)}: not found (expected all, {', '.join(known)})")
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise Unknown(f"policy {', '.join(unknown)}: not found (expected {', '.join(POLICIES)})")
