"""The id that the controller assigned to this store, in Apache RocketMQ's files (RocketMQ: BrokerMetadata).

    brokerIdentity         cluster#broker#id
    brokerIdentity-temp    cluster#broker#id#address;milliseconds

The second file exists while the broker applies for an id. Its last part proves to the controller that a repeated
application is from the same broker. A store without these files gets another id, because it has lost its log.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk


class Application(NamedTuple):
    """An application for an id."""

    broker_id: int
    check_code: str


class BrokerIdentity:
    """The id of one store."""

    def __init__(self, disk: Disk, paths: StorePaths, cluster: str, name: str) -> None:
        self._disk = disk
        self._path, self._temporary = paths.broker_identity, paths.broker_identity_temporary
        self._names = (cluster, name)

    def load(self) -> int | None:
        """Return the assigned id, or None without one. Raises OSError for a file of another broker."""
        fields = self._fields(self._path, 3)
        return None if fields is None else int(fields[2])

    def application(self) -> Application | None:
        """Return the application that has no answer yet, or None. Raises OSError."""
        fields = self._fields(self._temporary, 4)
        return None if fields is None else Application(int(fields[2]), fields[3])

    def apply(self, broker_id: int, address: str, now_ms: int) -> Application:
        """Store and return an application for `broker_id`. Raises OSError."""
        application = Application(broker_id, f"{address};{now_ms}")
        self._disk.replace(self._temporary, "#".join((*self._names, str(broker_id), application.check_code)).encode())
        return application

    def accept(self, broker_id: int) -> None:
        """Store the assigned id. Raises OSError."""
        self._disk.replace(self._path, "#".join((*self._names, str(broker_id))).encode())
        self.withdraw()

    def withdraw(self) -> None:
        """Forget an application. Raises OSError."""
        self._disk.remove(self._temporary)

    def _fields(self, path: Path, count: int) -> list[str] | None:
        raw = self._disk.read(path)
        if raw is None or not raw.strip():
            return None
        fields = raw.decode(errors="replace").strip().split("#")
        if len(fields) != count or not fields[2].isdecimal():
            raise OSError(f"{path} is damaged. Remove it, and the controller assigns another id")
        if (fields[0], fields[1]) != self._names:
            raise OSError(
                f"{path} belongs to the broker {fields[1]} of the cluster {fields[0]}. Correct broker_name and "
                "cluster, or remove the file, and the controller assigns another id"
            )
        return fields
