"""QUERY_MESSAGE, VIEW_MESSAGE_BY_ID: find messages by key or by position (RocketMQ: QueryMessageProcessor)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.block_queries import SEARCH_MS, KeySearch, is_in_block, view
from wheelmq.broker.context import Context
from wheelmq.broker.engine import Engine
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.delay.delivery_state import KeyQuery
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import UNIQUE_KEY_QUERY, QueryMessageHeader, ViewMessageHeader
from wheelmq.store.index import MessageIndex
from wheelmq.store.store import Store

CATCH_UP_MS: Final = 100
"""Milliseconds that a query waits for the index to cover earlier messages. Then its answer has the known ones."""

HANDLERS: Final[HandlerTable[[Context, Engine]]] = HandlerTable()


@HANDLERS.serves(RequestCode.QUERY_MESSAGE)
def query_message(request: Request, context: Context, engine: Engine) -> Answer:
    """Return the records of a topic with a key, stored within a time range. Some may only share the hash of the key.

    These include pending messages in blocks. A record of another topic with the same hash is left out: its sender may
    have chosen the key for that.
    """
    header = request.header(QueryMessageHeader)
    is_unique = request.ext.get(UNIQUE_KEY_QUERY) == "true"
    most = context.settings.requests.query_unique_key_count_max if is_unique else header.max_num
    if most < 0:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"maxNum is {most}: it must be 0 or more")
    most = min(most, context.settings.requests.query_count_max)
    index, upto = engine.index, context.store.log.end
    if index is None:
        raise _not_found()
    asked = KeyQuery(header.topic, header.key)
    search = KeySearch(engine, asked, is_unique=is_unique)

    def attempt(last: bool) -> Command | None:
        is_ready = index.indexed_to >= upto and search.is_over
        return _found(header, most, index, search, engine.store) if last or is_ready else None

    if index.indexed_to < upto:
        index.expedite()
    timeout_ms = CATCH_UP_MS if search.is_over else SEARCH_MS
    return attempt(False) or context.holds.wait(request, index, timeout_ms, attempt)


def _found(header: QueryMessageHeader, most: int, index: MessageIndex, search: KeySearch, store: Store) -> Command:
    log = store.log
    found = index.find(header.topic, header.key, Millis(header.begin_timestamp), Millis(header.end_timestamp), most)
    records = (log.record_at(position) for position in found.positions)
    mine = [record for record in records if record is not None and record.message.topic == header.topic]
    spans = [(record.position, record.size) for record in mine if store.is_shown(record.position)]
    in_blocks = list(islice(search.records(header.begin_timestamp, header.end_timestamp), most - len(spans)))
    if not spans and not in_blocks:
        raise _not_found()
    return reply(
        body=log.gather(spans) + b"".join(in_blocks),
        indexLastUpdateTimestamp=found.last_ms,
        indexLastUpdatePhyoffset=found.last_position,
    )


def _not_found() -> PeerError:
    return PeerError(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")


@HANDLERS.serves(RequestCode.VIEW_MESSAGE_BY_ID)
def view_message(request: Request, context: Context, engine: Engine) -> Answer:
    """Return the record of an offset message id, which names a log position, or the origin of a message in a block."""
    position = LogPosition(request.header(ViewMessageHeader).offset)
    if is_in_block(position):
        shown = view(engine, Origin(position))
        if shown is None:
            text = "its block is deleted, query by unique key"
            raise PeerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}; {text}")
        return reply(body=shown)
    record = context.store.log.record_at(position)
    if record is None or not context.store.is_shown(position):
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
    return reply(body=context.store.log.gather([(position, record.size)]))
