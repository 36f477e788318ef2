"""The schema of a part's settings: their fields, their groups in TOML, and Apache's names."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect as shapes

from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import ApacheKey, Treatment

T = TypeVar("T", bound=msgspec.Struct)


class Given(NamedTuple):
    """A value, and its source, such as `broker.conf, line 3: listenPort`."""

    value: Any
    where: str


@dataclass(frozen=True)
class Schema(Generic[T]):
    """The settings of a part."""

    shape: type[T]
    keys: Mapping[str, ApacheKey]
    """Apache's keys, by name."""
    groups: Mapping[str, Mapping[str, str]]
    """The fields of `shape` by group, and in a group by their names in a TOML file."""
    check: Callable[[T], None]
    """Raises ValueError that names a field in conflict with others."""
    mutable: frozenset[str]
    """Fields that can change while the part runs."""
    narrower: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The allowed values, in words, of fields for which `check` is stricter than their type."""

    def allowed(self, field: str) -> str:
        """Return in words the values that `field` may have."""
        return self.narrower.get(field) or allowed(self.types[field])

    @cached_property
    def types(self) -> dict[str, Any]:
        """The types of the fields, bounds included."""
        return typing.get_type_hints(self.shape, include_extras=True)

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """The text below each field in the source, if there is one."""
        return _descriptions(self.shape)

    def build(self, given: Mapping[str, Given]) -> T:
        """Return the settings. Raises ConfigError with one line for each value that is not allowed."""
        problems, values = [], {}
        for field, (value, where) in given.items():
            try:
                values[field] = self.convert(field, value)
            except ValueError as error:
                problems.append(f"{where}: {error}")
        if problems:
            raise ConfigError("\n".join(problems))
        try:
            settings = self.shape(**values)
            self.check(settings)
        except ValueError as error:
            names = {field: (field, apaches.name) for field, apaches in self.apaches().items()}
            named = [
                where
                for field, (_, where) in given.items()
                if any(name in str(error) for name in names.get(field, (field,)))
            ]
            raise ConfigError(": ".join([*named[:1], str(error)])) from None
        return settings

    def convert(self, field: str, value: Any) -> Any:
        """Return `value`, which may be a text, in the type of `field`. Raises ValueError with the allowed values."""
        kind = self.types[field]
        if isinstance(value, str) and isinstance(shapes.type_info(kind), shapes.VarTupleType):
            value = [part.strip() for part in value.replace(",", ";").split(";") if part.strip()]
        try:
            return msgspec.convert(value, kind, strict=False, dec_hook=lambda kind, found: kind(found))
        except msgspec.ValidationError:
            raise ValueError(f"found {value!r}; allowed: {self.allowed(field)}") from None

    def field_of(self, name: str) -> str | None:
        """Return the field that `name` means: its own name, group and key with a dot, or Apache's name."""
        group, _, key = name.partition(".")
        if key:
            return self.groups.get(group, {}).get(key)
        if name in self.shape.__struct_fields__:
            return name
        found = self.keys.get(name)
        return found.ours if found is not None and found.treatment is Treatment.HONOURED else None

    def apaches(self) -> dict[str, ApacheKey]:
        """Return the honoured rows, by field."""
        return {key.ours: key for key in self.keys.values() if key.treatment is Treatment.HONOURED}


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
    """Return in words the values that a field of type `kind` may have."""
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


def _descriptions(shape: type[msgspec.Struct]) -> dict[str, str]:
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
