"""CronWorkloads of simulated users: created at the start, suspended at the end, so that the system can come to rest."""

from __future__ import annotations

import random

import msgspec

from holdfast.client.contract import Client
from holdfast.model.cron_workload import ConcurrencyPolicy, CronWorkload, CronWorkloadSpec, RunTemplate
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import RestartPolicy, Template
from holdfast.model.workload import Batch, WorkloadSpec, WorkloadType
from holdfast.model.writes import Update
from holdfast.sim.actors import create_object
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, QUICK

SCHEDULES = ("* * * * *", "*/2 * * * *", "1-59/2 * * * *")


def cron_workloads(tenant: str, rng: random.Random) -> list[CronWorkload]:
    """One CronWorkload per concurrency policy. Some runs end at once, others last longer than a minute."""
    made = []
    for policy in ConcurrencyPolicy:
        env = {BEHAVIOUR_ENV: QUICK} if rng.random() < 0.5 else {}
        template = Template(
            command=("work",),
            resources={"cpu": "100m", "memory": "64Mi"},
            restart_policy=RestartPolicy.ON_FAILURE,
            env=env,
        )
        spec = CronWorkloadSpec(
            schedule=rng.choice(SCHEDULES),
            concurrency_policy=policy,
            starting_deadline_seconds=rng.choice((None, 20.0, 150.0)),
            successful_runs_history_limit=1,
            workload=RunTemplate(
                spec=WorkloadSpec(type=WorkloadType.BATCH, template=template, batch=Batch(completions=1, parallelism=1))
            ),
        )
        meta = ObjectMeta(name=f"cron-{policy.value.lower()}", namespace=tenant)
        made.append(CronWorkload(metadata=meta, spec=spec))
    return made


async def create_cron_workloads(client: Client, tenant: str, rng: random.Random) -> None:
    for item in cron_workloads(tenant, rng):
        await create_object(client, item)


async def suspend_cron_workloads(client: Client) -> None:
    for item in (await client.list(CronWorkload)).items:
        if not item.spec.suspend and not item.metadata.terminating:
            spec = msgspec.structs.replace(item.spec, suspend=True)
            await client.commit([Update(msgspec.structs.replace(item, spec=spec))])
