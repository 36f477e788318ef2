"""Divide the turns of a batch into the parts of its tasks, in the driver, and read a part, in a task."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from wheelmq.delay.timer.staging import StagedRows
from wheelmq.net.sync_connection import BoundedConnection
from wheelmq.spark.query_group import TurnBatch
from wheelmq.spark.range_reader import read_range
from wheelmq.spark.ranges import ROWS_PER_PARTITION, Range, ranges, rows_of
from wheelmq.spark.upload import UploadLease
from wheelmq.system.tls_client import TlsOptions, client_tls


def parts_of(
    batch: TurnBatch, *, parallelism: int, wait_s: float, over_the_wire: bool, tls: TlsOptions | None
) -> list[dict[str, Any]]:
    """Return the fields of each part of a batch. A small turn is one part, because each task has a fixed cost."""
    found = []
    for number, (member, lease, plan) in batch.turns.items():
        precision_ms = int(lease.terms["precision_ms"])
        if rows_of(plan) <= ROWS_PER_PARTITION:
            shares = [ranges(plan, 1, precision_ms=precision_ms)]
        else:
            shares = [[one] for one in ranges(plan, parallelism, precision_ms=precision_ms)]
        fields = {
            "member": number,
            "broker": member.broker,
            "terms": lease.terms,
            "token": lease.token,
            "plan": plan,
            "wait_s": wait_s,
            "over_the_wire": over_the_wire,
            "tls": None if tls is None else tls.to_json(),
        }
        for share in shares:
            found.append({**fields, "ranges": [[one.kind, one.first, one.end, list(one.queues)] for one in share]})
    return found


def staged_rows(fields: dict[str, Any]) -> StagedRows:
    """Return the rows of a part. Raises StoreUnreadable, Refused, and CallError after `wait_s` of waiting."""
    tls = client_tls(None if fields["tls"] is None else TlsOptions.from_json(fields["tls"]))
    with contextlib.closing(BoundedConnection(fields["broker"], fields["wait_s"], tls)) as link:
        read = [
            read_range(
                Range(kind, fields["plan"], first=first, end=end, queues=[tuple(piece) for piece in queues]),
                fields["terms"],
                fields["token"],
                link,
                over_the_wire=fields["over_the_wire"],
            )
            for kind, first, end, queues in fields["ranges"]
        ]
    return np.concatenate(read)


def leases_of(batch: TurnBatch) -> dict[int, UploadLease]:
    """Return the leases of a batch by their numbers, as the uploads need them."""
    return {
        number: UploadLease(turning.member.broker, turning.lease.epoch, turning.lease.token)
        for number, turning in batch.turns.items()
    }
