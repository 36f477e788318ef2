"""Copy the log of a broker to a replica in a test, without sockets."""

from __future__ import annotations

from random import Random

from wheelmq.formats.units import LogPosition
from wheelmq.testing.harness import BrokerHarness


def copy_log(
    master: BrokerHarness,
    replica: BrokerHarness,
    randomness: Random,
    *,
    piece_bytes_max: int = 1 << 16,
    whole: bool = True,
) -> None:
    """Copy the bytes that the replica lacks, in pieces of random sizes, or with `whole=False` a random part of them.

    The replica ticks after some of the pieces.
    """
    log, target = master.broker.parts.store.log, replica.broker.parts.replica_log
    stop = log.end
    if not whole:
        stop = LogPosition(randomness.randint(min(target.received_to, stop), stop))
    while target.received_to < stop:
        at = target.received_to
        left_in_file = log.files.file_bytes - at % log.files.file_bytes
        count = min(randomness.randint(1, piece_bytes_max), stop - at, left_in_file)
        target.write(at, bytes(log.read(at, count)))
        if randomness.random() < 0.3:
            replica.tick(by_event=False)
    replica.settle()
