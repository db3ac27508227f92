"""A second scheduler: it sends proposals to a region's authority over the network.

Schedulers have no fencing token and may be wrong, because the authority checks proposals against current state. The
scheduler's certificate is issued by the platform's CA for the drill and deleted afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.world import Item
from holdfast.cli.http import Api
from holdfast.cli.platform.credentials import Credentials
from holdfast.model.template import Template, template_hash

PLACE = "/placement/v1"


class Proposer:
    def __init__(self, incident: Incident) -> None:
        credentials = Credentials(incident.layout)
        self._files = credentials.lend_scheduler()
        incident.undo_with("the drill's certificate", lambda: credentials.take_back(self._files))
        self._url = incident.plan.url
        self._region = incident.region
        self._api = self._connect()

    def _connect(self) -> Api:
        files = self._files
        return Api(self._url, name=self._region, ca=files.ca, cert=files.cert, key=files.key, timeout_s=10.0)

    def reserve(self, items: list[Item], *, bind: bool = True) -> list[Item]:
        answer: Any = self._api.request("POST", f"{PLACE}/reserve", {"items": items, "bind": bind})
        found: list[Item] = answer["answers"]
        return found

    def bind(self, items: list[Item]) -> list[Item]:
        answer: Any = self._api.request("POST", f"{PLACE}/bind", {"items": items})
        found: list[Item] = answer["answers"]
        return found

    def send_and_hang_up(self, call: str, body: Item) -> None:
        """Sends a complete request and closes the connection before the response, as after a timeout."""
        self._connect().send_only(f"{PLACE}/{call}", body)


def intent_of(replica: Item) -> Item:
    """The current intent of a replica: uid, template hash and attempt."""
    template = msgspec.convert(replica["spec"]["template"], Template)
    placed = replica.get("status", {}).get("placement", {})
    return {
        "replicaUid": replica["metadata"]["uid"],
        "templateHash": template_hash(template),
        "attempt": placed.get("attempt", 1),
    }


def place_item(replica: Item, node: str) -> Item:
    meta = replica["metadata"]
    return {"namespace": meta["namespace"], "replica": meta["name"], "intent": intent_of(replica), "node": node}
