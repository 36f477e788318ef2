"""The present role of a broker: the master of its name, or a slave of it.

The settings name the role of the first start. A promotion, an election or a later master changes it, and the store
remembers the change.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from wheelmq.broker.replication.settings import BrokerRole
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire.bodies import MASTER_ID, Body, BodyError
from wheelmq.store import config_file
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)


class StoredRole(Body):
    """replicationRole.json: the role that the broker took after its first start."""

    is_master: bool
    broker_id: int
    is_sync: bool = False
    """Whether a promoted slave replaced a SYNC_MASTER. It then is one itself."""
    freed_id: int = 0
    """The id that a promoted slave had before; 0 if it is unknown."""
    is_of_settings: bool = False
    """Whether role and id are those of the settings. Then only `is_sync` counts, for a promotion."""
    given_ids: dict[str, int] = {}
    """The ids that a promoted slave gave to former masters, by their addresses."""


def store_role(disk: Disk, paths: StorePaths, stored: StoredRole) -> None:
    """Remember a role for the next start. It is on disk on return. Raises OSError."""
    config_file.save(disk, paths.replication_role, stored)


class Role:
    """The role of one broker, which other parts ask when they need it."""

    def __init__(self, settings: BrokerSettings, disk: Disk, paths: StorePaths) -> None:
        """Take the role that the store remembers, or that of the settings. Raises OSError."""
        self._settings, self._disk, self._paths = settings, disk, paths
        self.is_elected = settings.controller.enable
        """Whether a controller elects the master. Then each broker starts as a slave."""
        self.is_master = not settings.starts_as_slave and not self.is_elected
        """Whether the broker stores messages of clients and releases delayed ones."""
        self.is_paused = False
        """Whether the broker was the master until now, and another one takes over. It hides as many records as before:
        those that too few replicas have may not be in the log of its successor."""
        self.broker_id = settings.broker.id
        """The id with which the broker registers. A master has 0."""
        self._replaces_sync = False
        """Whether the last known master was a SYNC_MASTER."""
        self._successor = ""
        """The address of the slave to which the broker hands over now; empty otherwise."""
        self._is_of_settings = True
        """Whether role and id are those of the settings."""
        self._freed_id = 0
        """The id of this broker before its promotion; 0 without one."""
        self._given_ids: dict[str, int] = {}
        """The ids that this master gave to former masters, by their addresses."""
        stored = None if self.is_elected else self._load()
        if stored is not None:
            self._replaces_sync, self._freed_id = stored.is_sync, stored.freed_id
            self._given_ids = dict(stored.given_ids)
            self._is_of_settings = stored.is_of_settings
        if (
            stored is not None
            and not stored.is_of_settings
            and (stored.is_master, stored.broker_id) != (self.is_master, self.broker_id)
        ):
            self.is_master, self.broker_id = stored.is_master, stored.broker_id
            log.warning(
                "the broker starts as a %s with the id %d, as %s says. To let the settings choose, remove this file",
                "master" if self.is_master else "slave",
                self.broker_id,
                paths.replication_role,
            )

    def _load(self) -> StoredRole | None:
        path = self._paths.replication_role
        try:
            found = config_file.load(self._disk, path, StoredRole)
            if found is not None:
                self._disk.sync_folder(path.parent)  # a kill may have come before it
            return found
        except BodyError as error:
            raise OSError(f"{path} is unreadable: {error}. Remove it, and the settings choose the role") from None

    @property
    def leads(self) -> bool:
        """Whether the broker is the master, or was it until a pause."""
        return self.is_master or self.is_paused

    @property
    def is_sync(self) -> bool:
        """Whether the broker is, or was until a pause, a master that answers a send once its replicas have it.

        A promoted slave has the mode of the master that it replaced, unless its settings name one.
        """
        if not self.leads:
            return False
        if self.is_elected:
            return True
        role = self._settings.replication.role
        return self._replaces_sync if role == BrokerRole.SLAVE else role == BrokerRole.SYNC_MASTER

    @property
    def needed_acks(self) -> int:
        """Replicas that must have a message before it counts as replicated."""
        return self._settings.replication.in_sync_replicas - 1 if self.is_sync else 0

    def note_master(self, *, is_sync: bool) -> None:
        """Note and store the mode of the master that this slave follows, for a promotion. Raises OSError."""
        if self.is_elected or self.is_master or is_sync == self._replaces_sync:
            return
        stored = StoredRole(
            is_master=False, broker_id=self.broker_id, is_sync=is_sync, is_of_settings=self._is_of_settings
        )
        store_role(self._disk, self._paths, stored)
        self._replaces_sync = is_sync

    @property
    def free_id(self) -> int:
        """The id that this broker had as a slave. Its former master can have it."""
        return self._freed_id or self._settings.broker.id or MASTER_ID + 1

    def take_id(self, broker_id: int) -> None:
        """Be the replica with the id that a controller assigned."""
        self.broker_id = broker_id

    @property
    def id_to_take_back(self) -> int:
        """The id that this master can have as a slave again: its former one, unless another broker has it; else 0."""
        return 0 if self._freed_id in self._given_ids.values() else self._freed_id

    def give_id(self, address: str, own_id: int, others: Collection[int]) -> int:
        """Return the id for the former master at `address`, and store it. Raises OSError.

        Several former masters may come back at the same time. The first one gets `free_id`, and another one
        `own_id`, the id that it had before, or one that no broker had. The ids of `others` are not free.
        """
        given = self._given_ids.get(address)
        if given is not None or not self._freed_id:
            return given or self.free_id
        taken = {*others, *self._given_ids.values()}
        wanted = [one for one in (self.free_id, own_id) if one > MASTER_ID and one not in taken]
        given = wanted[0] if wanted else max(taken) + 1
        self._store_as_master(self._freed_id, {**self._given_ids, address: given})
        return given

    def become_master(self) -> None:
        """Be the master from now on, and after the next start. Raises OSError."""
        freed_id = self.broker_id
        if not self.is_elected:
            self.store_master()
        self.is_master, self.broker_id, self._freed_id = True, MASTER_ID, freed_id

    def store_master(self) -> None:
        """Be the master after the next start. Raises OSError."""
        self._store_as_master(self.broker_id, {})

    def _store_as_master(self, freed_id: int, given_ids: dict[str, int]) -> None:
        stored = StoredRole(
            is_master=True,
            broker_id=MASTER_ID,
            is_sync=self._replaces_sync,
            freed_id=freed_id,
            given_ids=given_ids,
        )
        store_role(self._disk, self._paths, stored)
        self._given_ids = given_ids

    def pause(self, successor: str) -> None:
        """Be no master while the slave at `successor` takes over. The store does not remember it."""
        self.is_master, self.is_paused, self._successor = False, True, successor

    def resume(self) -> None:
        """Be the master again after `pause`."""
        self.is_master, self.is_paused, self._successor = True, False, ""

    @property
    def slave_text(self) -> str:
        """Return the reason why the broker stores no messages for clients, for the answer to them."""
        if self._successor:
            return f"the broker hands over to the slave at {self._successor}, which will be the master soon: retry"
        return f"the broker is a slave with the id {self.broker_id}: send to the master of its name"
