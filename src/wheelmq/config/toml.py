"""Check TOML files and environment variables against a model that is generated from the settings (pydantic-settings).

[timer]
precision_ms = 500        # or WHEELMQ_TIMER__PRECISION_MS=500, which overrides the file
"""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from wheelmq.config.apache import Reading
from wheelmq.config.environment import DELIMITER, PREFIX, variable_of, variables
from wheelmq.config.errors import ConfigError
from wheelmq.config.schema import Given, Schema, nearest

Schemas = Iterable[Schema[Any]]


def parse(raw: bytes, file: str) -> dict[str, Any]:
    """Return the tables of a file. Raises ConfigError."""
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is no UTF-8, the encoding of TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None


def check(tables: dict[str, Any], file: str, schema: Schema[Any], schemas: Schemas) -> Reading:
    """Return the settings of `schema` from the environment, which takes precedence, and from a file.

    The file may have the settings of all `schemas`. Raises ConfigError with one line for each wrong setting.
    """
    known = {variable_of(group, key) for one in schemas for group, keys in one.groups.items() for key in keys}
    problems = [
        f"the environment's {name} is no setting{nearest(name, known)}"
        for name in variables()
        if name.upper() not in known
    ]
    try:
        model = settings_model(schemas)(**tables)
    except ValidationError as error:
        problems += _problems(error, file, schemas)
    if problems:
        raise ConfigError("\n".join(problems))
    reading = Reading()
    for group, keys in schema.groups.items():
        chosen = getattr(model, group)
        for key in chosen.model_fields_set if chosen is not None else ():
            reading.given[keys[key]] = Given(getattr(chosen, key), _where(file, group, key))
    return reading


def settings_model(schemas: Schemas) -> type[BaseSettings]:
    groups: dict[str, Any] = {}
    for schema in schemas:
        for group, keys in schema.groups.items():
            fields = {key: _field(schema, name) for key, name in keys.items()}
            table = create_model(group, __config__=ConfigDict(extra="forbid"), **fields)
            groups[group] = (table | None, None)
    return create_model("WheelMQ", __base__=_Settings, **groups)


def json_schema(schemas: Schemas) -> dict[str, Any]:
    return settings_model(schemas).model_json_schema()


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=DELIMITER, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def _field(schema: Schema[Any], name: str) -> Any:
    kind, default = schema.fields[name].kind, schema.fields[name].default
    bounds: dict[str, Any] = {}
    if typing.get_origin(kind) is Annotated:
        kind, meta = typing.get_args(kind)
        limits = {limit: getattr(meta, limit) for limit in ("ge", "le", "min_length", "max_length", "pattern")}
        bounds = {limit: value for limit, value in limits.items() if value is not None}
    if typing.get_origin(kind) is tuple:
        kind = kind | str  # a text with separators between its parts
    if default is msgspec.NODEFAULT:
        kind, default = kind | None, None
    return (Annotated[kind, Field(description=schema.descriptions.get(name), **bounds)], default)


def _problems(error: ValidationError, file: str, schemas: Schemas) -> Iterator[str]:
    groups = {group: (one, keys) for one in schemas for group, keys in one.groups.items()}
    seen = set()
    for problem in error.errors():
        group, *path = map(str, problem["loc"])
        if group not in groups:
            yield f"{file}, [{group}]: there is no such table{nearest(group, groups)}; allowed: {', '.join(groups)}"
        elif not path:
            yield f"{file}, {group}: found {problem['input']!r}; allowed: a table"
        elif (group, path[0]) not in seen:
            seen.add((group, path[0]))  # a union of types reports one problem per type
            schema, keys = groups[group]
            where = _where(file, group, path[0])
            if path[0] not in keys:
                if where.startswith("the env"):
                    continue  # `check` reports unknown variables
                yield f"{where}: there is no such key{nearest(path[0], keys)}; allowed: {', '.join(keys)}"
            else:
                yield f"{where}: found {problem['input']!r}; allowed: {schema.allowed(keys[path[0]])}"


def _where(file: str, group: str, key: str) -> str:
    name = variable_of(group, key)
    return f"the environment's {name}" if name in map(str.upper, os.environ) else f"{file}, [{group}] {key}"
