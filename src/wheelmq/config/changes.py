"""Settings while a part runs: shown by Apache's names, and changed where that is allowed (RocketMQ: Configuration).

Apache takes what it can of a request, answers success whatever came of it, and writes all its keys to the file. Here a
request is taken whole or refused with the reason, and the file keeps all other lines.
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
from wheelmq.config.keys import ApacheKey, Treatment
from wheelmq.config.schema import Given, Schema, nearest
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk

T = TypeVar("T", bound=msgspec.Struct)

log = logging.getLogger(__name__)


class ChangeRejected(Exception):
    """Nothing was changed; the code and the remark of the answer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that settings came from, if any, and where each was given."""

    file: Path | None = None
    given: dict[str, Given] = field(default_factory=dict)


class Configuration(Generic[T]):
    """The settings of a part that runs. `changed` is told the fields that were set."""

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
        """Counts changes since the start."""

    def text(self) -> bytes:
        """What is in force, as lines of Apache's names in their order."""
        values = {}
        for key in self._schema.keys.values():
            if key.treatment is Treatment.HONOURED:
                values[key.name] = apache.written(getattr(self._settings, key.ours))
            elif key.treatment is Treatment.REFUSED:
                values[key.name] = key.default
        return properties.write(values).encode()

    def update(self, body: bytes) -> None:
        """Take the values in `body`, on disk first. Raises ChangeRejected."""
        try:
            changes = self._changes({one.name: one.value for one in properties.parse(body)})
            self._schema.check(msgspec.structs.replace(self._settings, **changes))
        except ValueError as error:
            raise ChangeRejected(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not changes:
            return
        self._save(changes)
        for name, value in changes.items():
            log.info("%s was %s and is %s", name, getattr(self._settings, name), value)
            setattr(self._settings, name, value)
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self._changed(frozenset(changes))

    def _changes(self, values: dict[str, str]) -> dict[str, Any]:
        """The fields of which `values` have another value. Raises ConfigError, ChangeRejected."""
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
            if text.strip() != apache.written(getattr(self._settings, key.ours)):
                found |= self._change(name, text)
        return found

    def _change(self, name: str, text: str) -> dict[str, Any]:
        """The field that the key `name` sets, if `text` is another value. Raises ConfigError, ChangeRejected."""
        reading = apache.interpret({name: text}, {name: name}, self._schema)
        found: dict[str, Any] = {}
        for field_name, one in reading.given.items():
            try:
                value = self._schema.convert(field_name, one.value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
            is_so = value == getattr(self._settings, field_name)
            if field_name not in self._schema.mutable and (not is_so or reading.notes):
                where = self._origin.file or "the file of settings"
                remark = f"{name} does not change at run time: change it in {where}, then start anew"
                raise ChangeRejected(ResponseCode.NO_PERMISSION, "; ".join([remark, *reading.notes]))
            if not is_so:
                found[field_name] = value
        return found

    def _save(self, changes: dict[str, Any]) -> None:
        """Put `changes` into the file. Raises ChangeRejected, with the file as it was."""
        file = self._origin.file
        if file is None:
            log.warning("%s: changed until the stop, for no file was given with -c", ", ".join(changes))
            return
        for name in changes:
            given = self._origin.given.get(name)
            if given is not None and not given.where.startswith(str(file)):
                log.warning("%s: for the next start %s counts before %s", name, given.where, file)
        try:
            raw = self._disk.read(file) or b""
            fresh = self._in_toml(raw, changes) if sources.is_toml(file) else self._in_properties(raw, changes)
            self._disk.replace(file, fresh, keep_previous=True)
        except (OSError, ConfigError) as error:
            raise ChangeRejected(ResponseCode.SYSTEM_ERROR, f"{file} could not be changed: {error}") from None

    def _in_toml(self, raw: bytes, changes: dict[str, Any]) -> bytes:
        places = {name: (group, key) for group, keys in self._schema.groups.items() for key, name in keys.items()}
        return toml_edit.with_changes(raw, {places[name]: value for name, value in changes.items()})

    def _in_properties(self, raw: bytes, changes: dict[str, Any]) -> bytes:
        keys = self._schema.apaches()
        return properties.with_changes(raw, {keys[name].name: apache.written(value) for name, value in changes.items()})


def _stay(key: ApacheKey, text: str) -> None:
    """Raises ChangeRejected unless `text` is what `key` is anyway."""
    if text.strip().lower() != key.default.lower():
        what = "is refused" if key.treatment is Treatment.REFUSED else "has no effect"
        raise ChangeRejected(ResponseCode.NO_PERMISSION, f"{key.name} {what}: {key.why}")
