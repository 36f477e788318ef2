"""Users and access lists of a stopped broker. So the first user exists before the first start."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from wheelmq.auth.acls import Acls, StoredAcls
from wheelmq.auth.files import ACLS_NAME, USERS_NAME, load_strictly
from wheelmq.auth.policies import AccessList
from wheelmq.auth.sealing import KeyFile
from wheelmq.auth.settings import AuthSettings
from wheelmq.auth.users import StoredUsers, User, Users
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.store import config_file
from wheelmq.system.disk import Disk


class OfflineAccess:
    """The tables of a store, which no broker may open meanwhile. Each change is on disk on return.

    The constructor raises StoreLocked while a broker runs, ConfigError if a file is not usable, and OSError.
    """

    def __init__(self, store: Path, key_file: str = "") -> None:
        self._disk = Disk()
        paths = StorePaths(store)
        self._lock = self._disk.lock(paths.lock)
        try:
            key_path = AuthSettings(key_file=key_file).key_path(store)
            self._users_path, self._acls_path = paths.config_file(USERS_NAME), paths.config_file(ACLS_NAME)
            self.users = Users(KeyFile(self._disk, key_path), load_strictly(self._disk, self._users_path, StoredUsers))
            self.acls = Acls(load_strictly(self._disk, self._acls_path, StoredAcls))
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def put_user(self, name: str, user: User | None) -> None:
        """Store a user. None removes it, with its list."""
        if user is None and self.acls.get(name) is not None:
            self.put_acl(name, None)
        self.users.put(name, user)
        config_file.save(self._disk, self._users_path, self.users.content(), private=True)

    def put_acl(self, name: str, found: AccessList | None) -> None:
        """Store the list of a user; None removes it."""
        self.acls.put(name, found)
        config_file.save(self._disk, self._acls_path, self.acls.content())
