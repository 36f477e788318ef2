"""One file per operation, and here the parts that the handlers take."""

from __future__ import annotations

from typing import Any, Final

from wheelmq.broker.handler_table import COMMON, BoundHandler, HandlerTable
from wheelmq.broker.handlers import (
    acls,
    batches,
    block_replicas,
    cleaning,
    config,
    connections,
    consumption,
    controller,
    groups,
    locks,
    members,
    metrics,
    offsets,
    pipeline,
    pipeline_read,
    pull,
    query,
    queues,
    recall,
    relay,
    replicas,
    replies,
    resets,
    runtime,
    send,
    send_back,
    stats,
    timers,
    topics,
    transactions,
    users,
)
from wheelmq.broker.parts import Parts

COMMON_ONLY: Final = (
    *(connections, consumption, groups, locks, offsets, pull, queues, recall),
    *(relay, replies, resets, send_back, stats, topics),
)
"""Modules whose handlers all take the context only."""
TABLES: Final[tuple[HandlerTable[Any], ...]] = (
    *(
        COMMON,
        batches.HANDLERS,
        block_replicas.HANDLERS,
        cleaning.HANDLERS,
        config.HANDLERS,
        controller.HANDLERS,
        members.HANDLERS,
        metrics.HANDLERS,
        metrics.FAMILIES,
        pipeline.HANDLERS,
    ),
    *(
        pipeline_read.HANDLERS,
        query.HANDLERS,
        replicas.HANDLERS,
        runtime.HANDLERS,
        send.HANDLERS,
        transactions.HANDLERS,
    ),
    *(timers.CHECK_POINT, timers.LISTINGS, timers.METRICS, users.HANDLERS, acls.HANDLERS, pipeline.OPENING),
)
HANDLERS: Final = {code: handler for table in TABLES for code, handler in table.by_code.items()}
assert len(HANDLERS) == sum(len(table.by_code) for table in TABLES), "two handlers serve one code"


def bind_handlers(parts: Parts) -> dict[int, BoundHandler]:
    context, engine, sources = parts.context, parts.engine, parts.metric_sources
    bound = {
        **COMMON.bind(context),
        **batches.HANDLERS.bind(context, parts.batches),
        **block_replicas.HANDLERS.bind(context, parts.replication),
        **cleaning.HANDLERS.bind(engine.store, parts.file_upkeep.expiry),
        **config.HANDLERS.bind(parts.configuration),
        **controller.HANDLERS.bind(context, parts.replication, parts.elections),
        **members.HANDLERS.bind(context, parts.member_changes),
        **metrics.HANDLERS.bind(sources),
        **metrics.FAMILIES.bind(parts.slices, sources),
        **pipeline.HANDLERS.bind(context, parts.pipeline),
        **pipeline.OPENING.bind(context, parts.pipeline, parts.access),
        **pipeline_read.HANDLERS.bind(context, engine.timer, parts.pipeline),
        **query.HANDLERS.bind(context, engine),
        **replicas.HANDLERS.bind(context, parts.replication),
        **runtime.HANDLERS.bind(sources),
        **send.HANDLERS.bind(context, parts.unique_ids),
        **timers.CHECK_POINT.bind(engine.timer, parts.releaser),
        **timers.LISTINGS.bind(context, engine),
        **timers.METRICS.bind(parts.timer_upkeep.metrics),
        **transactions.HANDLERS.bind(context, parts.transactions),
        **users.HANDLERS.bind(parts.access),
        **acls.HANDLERS.bind(parts.access),
    }
    assert bound.keys() == HANDLERS.keys(), "no handler is without its parts"
    return bound
