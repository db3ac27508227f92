"""The server with a client of another release: it accepts the write and warns about dropped fields."""

from __future__ import annotations

import msgspec

from holdfast.client import wire
from holdfast.model.meta import Key
from holdfast.model.workload import Summary, Workload
from holdfast.model.writes import SetStatus

from .conftest import WORKLOADS, Api, workload


async def test_commit_of_next_release_drops_unknown_block_with_warning(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    stored = wire.decode_object((await api.get(f"{WORKLOADS}/web")).body)
    write = SetStatus("Workload", Key("shop", "web"), stored.uid, {"summary": Summary(ready=2)})
    tree = msgspec.json.decode(wire.encode_commit([write]))
    tree["writes"][0]["blocks"]["forecast"] = {"ready": 3}
    tree["writes"][0]["blocks"]["summary"]["forecast"] = 3
    done = await api.as_user("holdfast:controller:workload-status").post("/commit/v1", msgspec.json.encode(tree))
    assert done.code == 200, done.body
    assert any("unknown status block forecast was dropped" in text for text in done.warnings), done.warnings
    (found,) = wire.decode_committed(done.body).objects
    assert isinstance(found, Workload) and found.status.summary.ready == 2
    assert b"forecast" not in (await api.get(f"{WORKLOADS}/web")).body
