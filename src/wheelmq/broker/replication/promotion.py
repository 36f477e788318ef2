"""Make a replica the master of its broker name."""

from __future__ import annotations

import logging

from wheelmq.broker.record_dispatch import RecordDispatch
from wheelmq.broker.replication.replica_log import ReplicaLog
from wheelmq.broker.replication.role import Role
from wheelmq.broker.transactions.transactions import Transactions

log = logging.getLogger(__name__)


class Promotion:
    """Changes the role of a running replica. Its next tick releases the messages that are due."""

    def __init__(
        self, role: Role, replica_log: ReplicaLog, records: RecordDispatch, transactions: Transactions
    ) -> None:
        self._role = role
        self._replica_log = replica_log
        self._records = records
        self._transactions = transactions

    def promote(self) -> None:
        """Take over as the master. The connection to the former master must be closed.

        Bytes of an incomplete record at the end are dropped.
        """
        while self._replica_log.has_more():
            self._replica_log.take()
            self._records.run()
        self._replica_log.drop_incomplete()
        self._role.become_master()
        self._transactions.take_over()
        log.warning("the broker is the master now")
