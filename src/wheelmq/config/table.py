"""The tables of docs/operations/settings.md: the treatment of Apache's keys, and all settings by WheelMQ's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from wheelmq.config.apache import written
from wheelmq.config.keys import ApacheKey, Treatment
from wheelmq.config.schema import Schema


def apaches_keys(keys: Iterable[ApacheKey], schema: Schema[Any]) -> str:
    columns = ("Apache's name", "type", "unit", "Apache's default", "treatment", "our default", "our name, or reason")
    return _table(columns, (_row_of(key, schema) for key in keys))


def our_names(schema: Schema[Any]) -> str:
    """Return the table of the settings of `schema`, one row each, by table and key of a TOML file."""
    apaches = schema.apaches()
    columns = ("table", "key", "for `--set`", "allowed", "default", "at run time", "Apache's name", "meaning")

    def rows() -> Iterator[tuple[str, ...]]:
        for group, names in schema.groups.items():
            for key, field in names.items():
                apache = apaches.get(field)
                yield (
                    f"`[{group}]`",
                    f"`{key}`",
                    f"`{field}`",
                    schema.allowed(field),
                    default(schema, field),
                    "yes" if field in schema.mutable else "",
                    "" if apache is None else apache.name,
                    schema.descriptions.get(field, ""),
                )

    return _table(columns, rows())


def default(schema: Schema[Any], field: str) -> str:
    """Return the default of `field`; for a path, its place in the home folder."""
    found = schema.fields[field].default
    if found is msgspec.NODEFAULT:
        return {"store_path": "HOME/store", "kv_config_path": "HOME/namesrv/kvConfig.json"}[field]
    return written(found)


def _row_of(key: ApacheKey, schema: Schema[Any]) -> tuple[str, ...]:
    is_honoured = key.treatment is Treatment.HONOURED
    own = default(schema, key.ours) if is_honoured else ""
    last = f"`{key.ours}`" if is_honoured else key.why
    theirs = f"`{key.default}`" if key.default.startswith("<") else key.default
    return key.name, key.kind, key.unit, theirs, key.treatment, own, last


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(" ".join(line.split()) for line in lines) + "\n"
