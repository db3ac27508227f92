"""A second scheduler: it sends proposals to a region's authority over the network.

Schedulers have no fencing token and may be wrong, because the authority checks proposals against current state. The
scheduler's certificate is issued by the platform's CA for the drill and deleted afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.client.sync_api import CellApi
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.platform_observer import Item
from holdfast.model.template import Template, template_hash
from holdfast.platform.credentials import Credentials

PLACEMENT_PATH = "/placement/v1"


class ExternalScheduler:
    def __init__(self, drill: DrillRun) -> None:
        credentials = Credentials(drill.layout)
        self._files = credentials.issue_drill_scheduler()
        drill.add_undo("the drill's certificate", lambda: credentials.remove(self._files))
        self._url = drill.plan.url
        self._region = drill.region
        self._api = self._connect()

    def _connect(self) -> CellApi:
        files = self._files
        return CellApi(self._url, name=self._region, ca=files.ca, cert=files.cert, key=files.key, timeout_s=10.0)

    def reserve(self, items: list[Item], *, bind: bool = True) -> list[Item]:
        answer: Any = self._api.request("POST", f"{PLACEMENT_PATH}/reserve", {"items": items, "bind": bind})
        found: list[Item] = answer["results"]
        return found

    def bind(self, items: list[Item]) -> list[Item]:
        answer: Any = self._api.request("POST", f"{PLACEMENT_PATH}/bind", {"items": items})
        found: list[Item] = answer["results"]
        return found

    def send_without_reading_response(self, call: str, body: Item) -> None:
        """Sends a complete request and closes the connection before the response, as after a timeout."""
        self._connect().post_without_reading(f"{PLACEMENT_PATH}/{call}", body)


def current_intent(replica: Item) -> Item:
    """The current intent of a replica: uid, template hash and attempt."""
    template = msgspec.convert(replica["spec"]["template"], Template)
    placed = replica.get("status", {}).get("placement", {})
    return {
        "replicaUid": replica["metadata"]["uid"],
        "templateHash": template_hash(template),
        "attempt": placed.get("attempt", 1),
    }


def proposal_item(replica: Item, node: str) -> Item:
    meta = replica["metadata"]
    return {"namespace": meta["namespace"], "replica": meta["name"], "intent": current_intent(replica), "node": node}
