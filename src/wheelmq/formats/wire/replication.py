"""The bytes between a master and its replicas, on the master's HA port.

Apache RocketMQ has two protocols on this port. Both send the commit log as it is, in frames that may begin and end
inside a record. `DefaultHAService` is the classic one. It has no handshake, and the replica sends its end first.
`AutoSwitchHAService` begins with a handshake and names the epoch of each frame. All integers are big-endian.

    replica to master      classic  REPORT                      with epochs  HANDSHAKE, then EPOCH_REPORT
    master to replica      classic  DATA, then bytes            with epochs  EPOCHS, then EPOCH_DATA and bytes

A frame of data without bytes is a heartbeat. Sources: rocketmq-all-5.3.3, package org.apache.rocketmq.store.ha.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wheelmq.formats.disk.epochs import Epoch
from wheelmq.formats.field import Field, Layout
from wheelmq.formats.units import LogPosition

STATE_HANDSHAKE: Final = 1
STATE_TRANSFER: Final = 2
STATE_TICKET: Final = 3
"""States of a connection with epochs, as the first word of each frame."""

REPORT: Final = Layout("classic report", Field("position", "int64", "end of the replica's log; the first is a request"))
DATA: Final = Layout(
    "classic data",
    Field("position", "int64", "log position of the bytes; in a heartbeat, of the next bytes"),
    Field("bytes", "int32", "number of bytes that follow"),
)
TICKET: Final = Layout(
    "ticket of a replica",
    Field("state", "int32", "3"),
    Field("bytes", "int32", "bytes of the ticket that follows, 1 to 64"),
)
HANDSHAKE: Final = Layout(
    "handshake of a replica",
    Field("state", "int32", "1"),
    Field("from_last_file", "int16", "1: a replica without a log begins at the master's last file"),
    Field("is_learner", "int16", "1: the replica never becomes a master"),
    Field("replica_id", "int64", "id of the replica at its controller"),
)
EPOCHS: Final = Layout(
    "handshake of the master",
    Field("state", "int32", "1"),
    Field("bytes", "int32", "bytes of the epochs that follow, 12 for each"),
    Field("end", "int64", "end of the master's log"),
    Field("epoch", "int32", "the master's epoch"),
)
EPOCH: Final = Layout(
    "epoch",
    Field("epoch", "int32", "number of the epoch"),
    Field("start", "int64", "log position at which it began"),
)
EPOCH_REPORT: Final = Layout(
    "report with epochs",
    Field("state", "int32", "2"),
    Field("position", "int64", "end of the replica's log; the first is a request"),
)
EPOCH_DATA: Final = Layout(
    "data with epochs",
    Field("state", "int32", "2"),
    Field("bytes", "int32", "number of bytes that follow, all of one epoch"),
    Field("position", "int64", "log position of the bytes; in a heartbeat, of the next bytes"),
    Field("epoch", "int32", "the epoch of the bytes"),
    Field("epoch_start", "int64", "log position at which this epoch began"),
    Field("confirmed", "int64", "the log is on all replicas in sync up to here"),
)


def encode_handshake(end: LogPosition, epochs: Sequence[Epoch]) -> bytes:
    """Return the handshake of a master whose log ends at `end`."""
    head = EPOCHS.pack(STATE_HANDSHAKE, EPOCH.size * len(epochs), end, epochs[-1].number if epochs else -1)
    return head + b"".join(EPOCH.pack(*one) for one in epochs)
