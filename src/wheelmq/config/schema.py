"""The schema of a part's settings: their tables and keys in TOML, their own names, and Apache's names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import inspect as shapes

from wheelmq.config import setting
from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import SECRETS, ApacheKey, Treatment
from wheelmq.config.setting import Declared, SettingsTable, SettingsTables

T = TypeVar("T", bound=msgspec.Struct)


class Given(NamedTuple):
    """A value, and its source, such as `broker.conf, line 3: listenPort`."""

    value: Any
    where: str


@dataclass(frozen=True)
class Schema(Generic[T]):
    """The settings of a part, by all their names. All else is derived from the fields of its tables."""

    shape: type[T]
    """A struct with one field per table."""
    rows: Mapping[str, ApacheKey]
    """Apache's keys, by name."""

    @cached_property
    def tables(self) -> Mapping[str, type[SettingsTable]]:
        """Return the tables by name."""
        assert issubclass(self.shape, SettingsTables), self.shape
        return setting.tables_of(self.shape)

    @cached_property
    def fields(self) -> dict[str, Declared]:
        return setting.declared(self.tables)

    @cached_property
    def groups(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {table: {} for table in self.tables}
        for one in self.fields.values():
            found[one.table][one.key] = one.name
        return found

    @cached_property
    def keys(self) -> dict[str, ApacheKey]:
        """Apache's keys, by name, each with the setting that it sets."""
        names = {one.setting.apache: one.name for one in self.fields.values() if one.setting.apache}
        honoured = {name for name, row in self.rows.items() if row.treatment is Treatment.HONOURED}
        assert names.keys() == honoured, f"only a setting or only a row names {names.keys() ^ honoured}"
        return {name: row._replace(ours=names.get(name, "")) for name, row in self.rows.items()}

    @cached_property
    def mutable(self) -> frozenset[str]:
        """The settings that can change while the part runs. A change names a setting by its key of Apache RocketMQ."""
        found = {one.name: one.setting for one in self.fields.values() if one.setting.mutable}
        nameless = [name for name, one in found.items() if not one.apache]
        assert not nameless, f"no request can change {nameless}: a mutable setting needs a key of Apache RocketMQ"
        return frozenset(found)

    @cached_property
    def descriptions(self) -> dict[str, str]:
        return setting.descriptions(self.tables)

    def allowed(self, name: str) -> str:
        one = self.fields[name]
        return one.setting.narrower or allowed(one.kind)

    def value(self, settings: T, name: str) -> Any:
        one = self.fields[name]
        return getattr(self._table(settings, one.table), one.key)

    def set_value(self, settings: T, name: str, value: Any) -> None:
        one = self.fields[name]
        setattr(self._table(settings, one.table), one.key, value)

    def check(self, settings: T) -> None:
        for table in self.tables:
            self._table(settings, table).check()

    def _table(self, settings: T, table: str) -> SettingsTable:
        found = getattr(settings, table)
        assert isinstance(found, SettingsTable)
        return found

    def build(self, given: Mapping[str, Given]) -> T:
        """Return the settings. Raises ConfigError with one line for each problem."""
        if problems := self.problems(given):
            raise ConfigError("\n".join(problems))
        return self.make({name: self.convert(name, value) for name, (value, _) in given.items()})

    def problems(self, given: Mapping[str, Given]) -> list[str]:
        """Return one line for each value that is not allowed, and for each other table whose check fails."""
        found, values, wrong_tables = [], {}, set()
        for name, (value, where) in given.items():
            try:
                values[name] = self.convert(name, value)
            except ValueError as error:
                found.append(f"{where}: {error}")
                wrong_tables.add(self.fields[name].table)
        incomplete = {
            one.table for one in self.fields.values() if one.default is msgspec.NODEFAULT and one.name not in values
        }
        for table, keys in setting.nested(self.tables, values).items():
            if table in wrong_tables | incomplete:
                continue
            try:
                self.tables[table](**keys).check()
            except ValueError as error:
                found.append(self._located(error, given))
        return found

    def _located(self, error: ValueError, given: Mapping[str, Given]) -> str:
        """Return the text of `error` after the place of the first value that it names."""
        names = {name: (name, apaches.name) for name, apaches in self.apaches().items()}
        named = [
            where
            for name, (_, where) in given.items()
            if any(known in str(error) for known in names.get(name, (name,)))
        ]
        return ": ".join([*named[:1], str(error)])

    def make(self, values: Mapping[str, Any]) -> T:
        """Return settings with `values`, by name. The others have their defaults. Raises ValueError."""
        found = {name: self.tables[name](**keys) for name, keys in setting.nested(self.tables, values).items()}
        made: Any = self.shape(**found)
        return cast(T, made)

    def changed(self, settings: T, changes: Mapping[str, Any]) -> T:
        """Return a copy of `settings` with `changes`, by name. Raises ValueError."""
        return self.make({name: self.value(settings, name) for name in self.fields} | dict(changes))

    def convert(self, name: str, value: Any) -> Any:
        """Return `value`, which may be a text, in the type of a setting. Raises ValueError with the allowed values."""
        kind = self.fields[name].kind
        if isinstance(value, str) and isinstance(shapes.type_info(kind), shapes.VarTupleType):
            value = [part.strip() for part in value.replace(",", ";").split(";") if part.strip()]
        try:
            return msgspec.convert(value, kind, strict=False, dec_hook=lambda kind, found: kind(found))
        except msgspec.ValidationError:
            raise ValueError(f"found {value!r}; allowed: {self.allowed(name)}") from None

    def field_of(self, name: str) -> str | None:
        """Return the setting that `name` means: its own name, table and key with a dot, or Apache's name."""
        table, _, key = name.partition(".")
        if key:
            return self.groups.get(table, {}).get(key)
        if name in self.fields:
            return name
        found = self.keys.get(name)
        return found.ours if found is not None and found.treatment is Treatment.HONOURED else None

    def apaches(self) -> dict[str, ApacheKey]:
        return {key.ours: key for key in self.keys.values() if key.treatment is Treatment.HONOURED}


def is_secret(schema: Schema[Any], field: str) -> bool:
    """Return whether the value of a setting is never printed."""
    key = schema.apaches().get(field)
    return key is not None and key.name in SECRETS


def by_name(*tables: Iterable[ApacheKey]) -> dict[str, ApacheKey]:
    """Return the rows of `tables` by name. If a name occurs twice, the first row counts."""
    found: dict[str, ApacheKey] = {}
    for table in tables:
        for key in table:
            found.setdefault(key.name, key)
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean x?)`, or an empty text if no name is similar."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f" (did you mean {by_lower[found[0]]}?)" if found else ""


def allowed(kind: Any) -> str:
    found = shapes.type_info(kind)
    if isinstance(found, shapes.EnumType):
        return ", ".join(str(one.value) for one in found.cls)
    if isinstance(found, shapes.BoolType):
        return "true, false"
    if isinstance(found, shapes.IntType):
        if found.ge is not None and found.le is not None:
            steps = "" if found.multiple_of is None else f", a multiple of {found.multiple_of}"
            return f"a whole number from {found.ge} to {found.le}{steps}"
        return "a whole number" if found.ge is None else f"a whole number of {found.ge} or more"
    if isinstance(found, shapes.FloatType):
        return "a number" if found.ge is None else f"a number from {found.ge} to {found.le}"
    if isinstance(found, shapes.StrType) and found.max_length is not None:
        of = "" if found.pattern is None else " of printable ASCII, without quotes and backslashes"
        return f"a text of {found.min_length} to {found.max_length} characters{of}"
    return "a list of texts" if isinstance(found, shapes.VarTupleType) else "a text"
