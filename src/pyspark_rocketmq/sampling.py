"""The mean size of the next messages of queues, from the first messages of each (option maxBytesPerTrigger)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import Filter, SourceOptions
from pyspark_rocketmq.pulls import Pulls
from pyspark_rocketmq.ranges import OffsetRange

SAMPLE_MESSAGES: Final = 32


def mean_bytes(cluster: Cluster, options: SourceOptions, ranges: Sequence[OffsetRange]) -> Mapping[Queue, float]:
    """Return the mean size of the records at the start of each range, by queue.

    The mean is 0 if these records are lost. Raises BrokerError, DataLossError.
    """
    everything = msgspec.structs.replace(options, filter=Filter())
    found = {}
    for one in ranges:
        sample = OffsetRange(one.queue, one.first, min(one.end, one.first + SAMPLE_MESSAGES))
        pulled = next(iter(Pulls(cluster, everything, sample)), None)
        found[one.queue] = 0.0 if pulled is None else len(pulled.body) / max(1, pulled.end - one.first)
    return found
