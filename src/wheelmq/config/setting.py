"""Declare each setting once: a field of a table, with its names, its bounds, its default and its text.

    class FlushSettings(SettingsTable, kw_only=True):
        interval_ms: Annotated[Positive, Setting("flush_interval_ms", "flushIntervalCommitLog", mutable=True)] = 500

The field's name is the key in a TOML file. A part of the broker takes its table as it is.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, Self

import msgspec


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts about a setting that its type and default do not tell: an annotation of its field."""

    name: str = ""
    """The name for `--set`, logs and errors. Without it, the key is the name."""
    apache: str = ""
    """Apache's name, if Apache RocketMQ has the setting."""
    mutable: bool = False
    """Whether the setting can change while the part runs. Not for paths, addresses, and sizes of existing files."""
    narrower: str = ""
    """The allowed values, in words, if a check is stricter than the type."""


class SettingsTable(msgspec.Struct):
    """The settings of one table of a TOML file. Only the configuration sets fields, and only mutable ones."""

    def check(self) -> None:
        """Check settings that depend on each other or are no numbers. Raises ValueError with the wrong setting."""


class SettingsTables(msgspec.Struct):
    """All settings of a part: one field per table, by the name of the table in a TOML file."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return settings with `values`, by the names for `--set`. The others have their defaults."""
        tables = tables_of(cls)
        return cls(**{name: tables[name](**fields) for name, fields in nested(tables, values).items()})


class Declared(NamedTuple):
    table: str
    key: str
    name: str
    setting: Setting
    kind: Any
    """The type, bounds included."""
    default: Any
    """msgspec.NODEFAULT if a start must choose a value."""


Tables = Mapping[str, type[SettingsTable]]


@cache
def tables_of(shape: type[SettingsTables]) -> dict[str, type[SettingsTable]]:
    types = typing.get_type_hints(shape)
    return {name: types[name] for name in shape.__struct_fields__}


@cache
def _declared_in(name: str, table: type[SettingsTable]) -> dict[str, Declared]:
    types = typing.get_type_hints(table, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(table):
        kind, *marks = typing.get_args(types[field.name]) if _is_annotated(types[field.name]) else [types[field.name]]
        setting = next((mark for mark in marks if isinstance(mark, Setting)), Setting())
        for mark in marks:
            if mark is not setting:
                kind = Annotated[kind, mark]
        own = setting.name or field.name
        found[own] = Declared(name, field.name, own, setting, kind, field.default)
    return found


def _is_annotated(kind: Any) -> bool:
    return typing.get_origin(kind) is Annotated


def declared(tables: Tables) -> dict[str, Declared]:
    """Return the settings of `tables`, by name."""
    found: dict[str, Declared] = {}
    for name, table in tables.items():
        own = _declared_in(name, table)
        assert not own.keys() & found.keys(), f"[{name}] declares a second setting {own.keys() & found.keys()}"
        found |= own
    return found


def nested(tables: Tables, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return `values` by table and key instead of by name. Raises KeyError for an unknown name."""
    known = declared(tables)
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        found.setdefault(known[name].table, {})[known[name].key] = value
    return found


def descriptions(tables: Tables) -> dict[str, str]:
    """Return the texts below the fields in the source, by the names of the settings."""
    found: dict[str, str] = {}
    for name, table in tables.items():
        texts = _texts(table)
        found |= {one.name: texts[one.key] for one in _declared_in(name, table).values() if one.key in texts}
    return found


def _texts(shape: type[msgspec.Struct]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(shape))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[statement.target.id] = " ".join(str(below.value.value).split())
    return found
