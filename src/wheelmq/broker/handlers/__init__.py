"""One file per operation. Importing this package registers every handler with broker.dispatch."""

from wheelmq.broker.handlers import (
    config,
    locks,
    members,
    metrics,
    offsets,
    pipeline,
    pipeline_read,
    pull,
    query,
    recall,
    runtime,
    send,
    send_back,
    timers,
    topics,
    transactions,
)

__all__ = [
    "config",
    "locks",
    "members",
    "metrics",
    "offsets",
    "pipeline",
    "pipeline_read",
    "pull",
    "query",
    "recall",
    "runtime",
    "send",
    "send_back",
    "timers",
    "topics",
    "transactions",
]
