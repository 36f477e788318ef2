"""The users and access lists of a broker, kept in config/users.json and config/acls.json.

A change counts at once, and its answer waits until it is on disk. If the write fails, the change is taken back.
"""

from __future__ import annotations

from wheelmq.auth.acls import Acls, StoredAcls
from wheelmq.auth.files import ACLS_NAME, USERS_NAME, load_strictly
from wheelmq.auth.policies import AccessList
from wheelmq.auth.sealing import KeyFile
from wheelmq.auth.settings import AuthSettings
from wheelmq.auth.users import StoredUsers, User, UserKind, Users
from wheelmq.broker.state.pending_changes import PendingChanges
from wheelmq.broker.state.table_file import TableFile
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.workers import Worker


class AccessTables:
    """Users and lists, and the files that keep them."""

    def __init__(self, disk: Disk, paths: StorePaths, clock: Clock, settings: AuthSettings, worker: Worker) -> None:
        """Load the files, and create the user of the settings. Raises KeyProblem, BadAcl, BodyError, OSError."""
        users_path, acls_path = paths.config_file(USERS_NAME), paths.config_file(ACLS_NAME)
        key_file = KeyFile(disk, settings.key_path(paths.root))
        self.users = Users(key_file, load_strictly(disk, users_path, StoredUsers))
        self.acls = Acls(load_strictly(disk, acls_path, StoredAcls))
        self._pending_users: PendingChanges[str, User] = PendingChanges()
        self._pending_acls: PendingChanges[str, AccessList] = PendingChanges()
        self.users_file = TableFile(
            disk, users_path, clock, worker, self.users.content, self._users_written, private=True
        )
        self.acls_file = TableFile(disk, acls_path, clock, worker, self.acls.content, self._acls_written)
        first = settings.init_access_key
        if first is not None and self.users.get(first.name) is None:
            self.change_user(first.name, self.users.make(first.name, first.secret, UserKind.SUPER))
            self.users_file.save_now()

    def change_user(self, name: str, user: User | None) -> None:
        """Store a user. None removes it; the caller removes its list first."""
        assert user is not None or self.acls.get(name) is None
        self.users_file.note_change()
        self._pending_users.note(self.users_file.changes, name, self.users.get(name))
        self.users.put(name, user)

    def change_acl(self, name: str, found: AccessList | None) -> None:
        """Store the list of a user; None removes it."""
        self.acls_file.note_change()
        self._pending_acls.note(self.acls_file.changes, name, self.acls.get(name))
        self.acls.put(name, found)

    def _users_written(self, upto: int, error: OSError | None) -> None:
        for name, before in self._pending_users.end(upto, failed=error is not None).items():
            self.users_file.note_change()
            self.users.put(name, before)

    def _acls_written(self, upto: int, error: OSError | None) -> None:
        for name, before in self._pending_acls.end(upto, failed=error is not None).items():
            self.acls_file.note_change()
            self.acls.put(name, before)
