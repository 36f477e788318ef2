"""Generate the table of JSON shapes in docs/command-line.md: `python -m tests.docs.command_line`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from wheelmq.cli.admin_brokers import BrokerRow, ValueRow
from wheelmq.cli.admin_groups import MemberRow, OffsetRow
from wheelmq.cli.admin_messages import MessageRow
from wheelmq.cli.admin_topics import QueueRow, RouteRow
from wheelmq.cli.dead_letters import LetterDetails, LetterRow
from wheelmq.cli.groups import GroupRow
from wheelmq.cli.lag import LagRow, QueueLag
from wheelmq.cli.timers_view import END_FIELDS, MinuteCount
from wheelmq.cli.topics import TopicRow
from wheelmq.cli.users import FIELDS
from wheelmq.delay.pending_message import PendingMessage

PAGE: Final = Path(__file__).parents[2] / "docs" / "command-line.md"
COLUMNS_MAX: Final = 120
LINES: Final = {
    "`send`": (
        *("status", "topic", "broker", "queue_id", "message_id", "unique_key", "due_ms", "due_is_exact", "level"),
        "recall_handle",
    ),
    "`cancel`": ("topic", "unique_key", "result"),
    "`consume`": (
        *("topic", "queue_id", "queue_offset", "received_ms", "due_ms", "due_is_exact", "lateness_ms", "level"),
        *("unique_key", "message_id", "keys", "tags", "reconsume_times", "body", "body_hex"),
    ),
    "`dead-letters resend`": ("group", "topic", "message_id", "result", "copy_message_id", "status"),
}
"""The fields of the lines that the other commands print with --json. The tests of the commands compare them."""
SHAPES: Final = {
    "`topics`, `admin topicList`": TopicRow.__struct_fields__,
    "`groups`": GroupRow.__struct_fields__,
    "`lag`, `admin consumerProgress`": LagRow.__struct_fields__,
    "an element of `queues` in `lag`": QueueLag.__struct_fields__,
    "`timers`": (*PendingMessage.__struct_fields__, *END_FIELDS),
    "`timer-counts`": MinuteCount.__struct_fields__,
    "`dead-letters list`": LetterRow.__struct_fields__,
    "`dead-letters inspect`": ("those of `list`", *LetterDetails.__struct_fields__[len(LetterRow.__struct_fields__) :]),
    "`admin clusterList`": BrokerRow.__struct_fields__,
    "`admin brokerStatus`, `getBrokerConfig`": ValueRow.__struct_fields__,
    "`admin topicRoute`": RouteRow.__struct_fields__,
    "`admin topicStatus`": QueueRow.__struct_fields__,
    "`admin consumerConnection`": MemberRow.__struct_fields__,
    "`admin resetOffsetByTime`": OffsetRow.__struct_fields__,
    "`admin queryMsgBy...`": MessageRow.__struct_fields__,
    "`users list`": FIELDS,
    "`acl list`": ("subject", "policies"),
}
"""The fields of the objects that a list prints with --json, by command."""
_TABLE: Final = re.compile(r"(<!-- shapes -->\n\| [^\n]*\n\|[-|]*\n).*?(<!-- end -->)", re.DOTALL)


def rows() -> str:
    """Return the rows of the table. A long row has several lines on the page, each with some fields."""
    found = []
    for command, fields in (SHAPES | LINES).items():
        line = f"| {command} | "
        for i, field in enumerate(fields):
            text = field + (", " if i + 1 < len(fields) else "")
            if len(line) + len(text) + 2 > COLUMNS_MAX:
                found.append(line.rstrip() + " |")
                line = "| | "
            line += text
        found.append(line.rstrip() + " |")
    return "".join(f"{line}\n" for line in found)


def with_rows(page: str) -> str:
    return _TABLE.sub(lambda match: match[1] + rows() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
