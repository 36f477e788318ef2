"""Show settings by Apache's names while a part runs, and change those that may change (RocketMQ: Configuration).

Unlike Apache's, a request is applied completely or rejected, and the file keeps all other lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from wheelmq.config import apache, properties, sources, toml_edit
from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import SECRETS, ApacheKey, Treatment
from wheelmq.config.schema import Given, Schema, nearest
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk

T = TypeVar("T", bound=msgspec.Struct)

log = logging.getLogger(__name__)


class ChangeRejected(Exception):
    """The change was rejected, and no setting changed. Has the code and the remark of the answer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of the settings, if any, and the source of each value."""

    file: Path | None = None
    given: dict[str, Given] = field(default_factory=dict)


class Configuration(Generic[T]):
    """The settings of a running part. A change calls `changed` with the fields that were set."""

    def __init__(
        self,
        schema: Schema[T],
        settings: T,
        origin: Origin,
        *,
        disk: Disk,
        clock: Clock,
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._schema = schema
        self._settings = settings
        self._origin = origin
        self._disk = disk
        self._clock = clock
        self._changed = changed
        self.version = DataVersion(timestamp=clock.now_ms())

    def text(self) -> bytes:
        """Return the current settings as lines of Apache's names, sorted, without secrets."""
        values = {}
        for key in self._schema.keys.values():
            if key.name in SECRETS:
                continue
            if key.treatment is Treatment.HONOURED:
                values[key.name] = apache.written(self._schema.value(self._settings, key.ours), key.name)
            elif key.treatment is Treatment.REFUSED:
                values[key.name] = key.default
        return properties.write(values).encode()

    def update(self, body: bytes) -> None:
        """Apply the values in `body`, after they are on disk. Raises ChangeRejected."""
        try:
            changes = self._changes({one.name: one.value for one in properties.parse(body)})
            self._schema.check(self._schema.changed(self._settings, changes))
        except ValueError as error:
            raise ChangeRejected(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not changes:
            return
        self._save(changes)
        for name, value in changes.items():
            log.info("%s was %s and is %s", name, self._schema.value(self._settings, name), value)
            self._schema.set_value(self._settings, name, value)
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self._changed(frozenset(changes))

    def _changes(self, values: dict[str, str]) -> dict[str, Any]:
        """Return the fields that `values` would change. Raises ConfigError, ChangeRejected."""
        for name in values:
            if name not in self._schema.keys:
                hint = nearest(name, self._schema.keys)
                raise ConfigError(f"{name} is no key of Apache RocketMQ 5.3.3{hint}")
        found: dict[str, Any] = {}
        for name, text in values.items():
            key = self._schema.keys[name]
            if key.treatment is not Treatment.HONOURED:
                _stay(key, text)
                continue
            if text.strip() != apache.written(self._schema.value(self._settings, key.ours), key.name):
                found |= self._change(name, text)
        return found

    def _change(self, name: str, text: str) -> dict[str, Any]:
        """Return the field that the key `name` sets, if `text` is another value. Raises ConfigError, ChangeRejected."""
        reading = apache.interpret({name: text}, {name: name}, self._schema)
        found: dict[str, Any] = {}
        for field_name, one in reading.given.items():
            try:
                value = self._schema.convert(field_name, one.value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
            is_so = value == self._schema.value(self._settings, field_name)
            if field_name not in self._schema.mutable and (not is_so or reading.notes):
                where = self._origin.file or "the file of settings"
                remark = f"{name} does not change at run time: change it in {where}, then restart"
                raise ChangeRejected(ResponseCode.NO_PERMISSION, "; ".join([remark, *reading.notes]))
            if not is_so:
                found[field_name] = value
        return found

    def _save(self, changes: dict[str, Any]) -> None:
        """Write `changes` to the file. Raises ChangeRejected and leaves the file unchanged on an error."""
        file = self._origin.file
        if file is None:
            log.warning("%s: changed until the stop, because no file was given with -c", ", ".join(changes))
            return
        for name in changes:
            given = self._origin.given.get(name)
            if given is not None and not given.where.startswith(str(file)):
                log.warning("%s: at the next start, the value of %s overrides that of %s", name, given.where, file)
        try:
            raw = self._disk.read(file) or b""
            fresh = self._in_toml(raw, changes) if sources.is_toml(file) else self._in_properties(raw, changes)
            self._disk.replace(file, fresh, keep_previous=True)
        except (OSError, ConfigError) as error:
            raise ChangeRejected(ResponseCode.SYSTEM_ERROR, f"{file} could not be changed: {error}") from None

    def _in_toml(self, raw: bytes, changes: dict[str, Any]) -> bytes:
        fields = self._schema.fields
        places = {(fields[name].table, fields[name].key): value for name, value in changes.items()}
        return toml_edit.with_changes(raw, places)

    def _in_properties(self, raw: bytes, changes: dict[str, Any]) -> bytes:
        names = {ours: key.name for ours, key in self._schema.apaches().items()}
        values = {names[ours]: apache.written(value, names[ours]) for ours, value in changes.items()}
        return properties.with_changes(raw, values)


def _stay(key: ApacheKey, text: str) -> None:
    if text.strip().lower() != key.default.lower():
        what = "is refused" if key.treatment is Treatment.REFUSED else "has no effect"
        raise ChangeRejected(ResponseCode.NO_PERMISSION, f"{key.name} {what}: {key.why}")
