"""The files of users and lists, as a server without changes of its own reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from wheelmq.auth.acls import Acls, StoredAcls
from wheelmq.auth.sealing import KeyFile
from wheelmq.auth.users import StoredUsers, Users
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire import bodies
from wheelmq.system.disk import Disk

T = TypeVar("T")

USERS_NAME: Final = "users.json"
ACLS_NAME: Final = "acls.json"


class UnreadableAccess(ConfigError):
    """A file of users or lists does not parse. The text names the remedy."""


def load_strictly(disk: Disk, path: Path, shape: type[T]) -> T | None:
    """Return the content of a file, or None if it does not exist. Raises UnreadableAccess, OSError.

    The previous version in `.bak` never replaces a damaged file: it may have a user that was deleted since.
    """
    raw = disk.read(path)
    if raw is None:
        return None
    try:
        return bodies.read(raw, shape)
    except bodies.BodyError as error:
        raise UnreadableAccess(
            f"{path}: {error}. Repair it, or restore it; {path.name}.bak has the previous version, perhaps with users "
            "and rights that were removed since"
        ) from None


class FollowedAccess:
    """The users and lists in a folder that another process changes. `refresh` reads changed files."""

    def __init__(self, disk: Disk, folder: Path, key_path: Path) -> None:
        """Raises KeyProblem, UnreadableAccess, BadAcl, OSError."""
        self._disk = disk
        self._key_path = key_path
        self._paths = folder / USERS_NAME, folder / ACLS_NAME
        self._seen = self._identities()
        users_path, acls_path = self._paths
        self.users = Users(KeyFile(disk, key_path), load_strictly(disk, users_path, StoredUsers))
        self.acls = Acls(load_strictly(disk, acls_path, StoredAcls))

    def refresh(self) -> bool:
        """Read the files again if they have changed, and return whether they have.

        Raises KeyProblem, UnreadableAccess, BadAcl, OSError, and keeps the users and lists of before.
        """
        now = self._identities()
        if now == self._seen:
            return False
        users_path, acls_path = self._paths
        users = load_strictly(self._disk, users_path, StoredUsers) or StoredUsers()
        acls = load_strictly(self._disk, acls_path, StoredAcls) or StoredAcls()
        Acls(acls)  # raises BadAcl before the users change
        self.users.replace_all(users)
        self.acls.replace_all(acls)
        self._seen = now
        return True

    def _identities(self) -> tuple[str, ...]:
        return tuple(self._disk.identity(path) for path in self._paths)
