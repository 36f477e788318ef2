"""Whether a master of Apache RocketMQ writes the log of this store.

Apache's records do not say which pending message they settle, and its checkpoint files say it only roughly. So a slave
of Apache keeps log, queues, tables and Apache's checkpoint files, and knows no pending messages. Its promotion starts
the broker again. Then recovery takes over the store as one that Apache RocketMQ has used (delay.timer.recovery).
"""

from __future__ import annotations

import logging
from random import Random

from wheelmq.broker.replication.epochs import Epochs
from wheelmq.delay.levels import offsets as level_offsets
from wheelmq.formats.disk.epochs import Epoch
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.bodies import Body
from wheelmq.store import config_file
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)


class ApacheMaster(Body):
    """apacheMaster.json: the master that wrote the log first."""

    address: str


def has_apache_log(disk: Disk, paths: StorePaths) -> bool:
    """Return whether the store follows a master of Apache RocketMQ."""
    return disk.read(paths.apache_master) is not None


def begin_apache_log(disk: Disk, paths: StorePaths, randomness: Random, address: str) -> None:
    """Let Apache's master at `address` write the log of a stopped store. Raises OSError, BodyError.

    With our checkpoint files, the next recovery would not see the messages that Apache settles. The log gets a new
    epoch, because it may differ from any log that has the old ones. A kill at any moment leaves a store that this
    function may prepare again.
    """
    for path in (paths.snapshot, paths.timer_mark, paths.config_file("timercheck")):
        disk.remove(path)
    disk.sync_folder(paths.config)
    offsets = level_offsets.load(disk, paths)
    if offsets is not None:
        offsets.wheelmq = False
        config_file.save(disk, paths.config_file("delayOffset.json"), offsets)
    epochs = Epochs(disk, paths)
    epochs.follow([Epoch(epochs.next_for_promotion(randomness), LogPosition(0))])
    reach("apache_log.prepared")
    config_file.save(disk, paths.apache_master, ApacheMaster(address=address))
    log.warning(
        "the master at %s is a broker of Apache RocketMQ: until its promotion, this slave keeps log and queues, and "
        "does not know which messages are pending",
        address,
    )


def end_apache_log(disk: Disk, paths: StorePaths) -> None:
    """Note that this broker writes the log itself from now on. Raises OSError."""
    if has_apache_log(disk, paths):
        disk.remove(paths.apache_master)
        disk.remove(paths.apache_master.with_name(paths.apache_master.name + ".bak"))
        disk.sync_folder(paths.config)
