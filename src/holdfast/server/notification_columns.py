"""Columns of notifications and their receivers in `kubectl get`."""

from __future__ import annotations

from holdfast.model.notification import Notification
from holdfast.server.table_column import NONE, TableColumn, column_field


def _delivered_count(notification: Notification) -> int:
    return sum(delivery.state == "Delivered" for delivery in notification.status.deliveries)


NOTIFICATION_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "NotificationReceiver": (
        TableColumn("Problem", lambda r: "Suspended" if r.spec.suspend else r.status.problem or NONE),
        TableColumn("Pending", column_field("status.pending"), "integer"),
        TableColumn("Delivered", column_field("status.delivered"), "integer"),
        TableColumn("Failures", column_field("status.failures"), "integer", description="since the last success"),
        TableColumn("Dropped", column_field("status.dropped"), "integer"),
        TableColumn("Last Success", lambda r: r.status.last_success_at or NONE),
        TableColumn("Url", column_field("spec.url"), wide=True),
    ),
    "Notification": (
        TableColumn("Type", column_field("spec.type")),
        TableColumn("State", column_field("spec.state")),
        TableColumn("Severity", column_field("spec.severity")),
        TableColumn("Delivered", lambda n: f"{_delivered_count(n)}/{len(n.spec.receivers)}"),
        TableColumn("Message", column_field("spec.message"), wide=True),
    ),
}
