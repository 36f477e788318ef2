"""The audit log of administration: one JSON line for each request, with its user, address, resource and outcome.

A line holds no body and no secret. Rejected requests are limited per minute, so that a stranger cannot push the lines
of administrators out of the log.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from wheelmq.auth.needs import Surroundings
from wheelmq.auth.rules import rule_of
from wheelmq.config import properties
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.command_text import FIELD_CHARS_MAX, short_fields
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import Clock
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

REJECTED_PER_MINUTE: Final = 60
RESOURCES_MAX: Final = 10
"""Resources in one line."""
REMARK_CHARS_MAX: Final = 200
_CONFIGS: Final = frozenset((RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG))


class AuditSink(Protocol):
    """Where the lines go."""

    def append(self, line: bytes) -> None:
        """Append one line, which ends with a line feed. Raises OSError."""
        ...


class AuditRecord(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One line of the audit log."""

    time: str
    user: str
    """Empty without authentication."""
    address: str
    request: str
    outcome: str
    """`done`, `failed` or `rejected`. The last one means that the user may not do it."""
    code: int = 0
    """The code of the answer, unless it is SUCCESS."""
    remark: str = ""
    resources: list[str] = []
    fields: dict[str, str] = {}
    """Fields of the header, without signatures, shortened."""
    settings: list[str] = []
    """Names of the settings in a request that changes settings."""
    not_shown: int = 0
    """Rejected requests since the last line of one that had no line, because there were too many."""


class Audit:
    """Writes the lines of one server. A line that cannot be written is logged, and the request is served."""

    def __init__(self, sink: AuditSink | None, clock: Clock, here: Surroundings) -> None:
        self._sink = sink
        self._clock = clock
        self._here = here
        self._log = RateLimitedLog(log, clock.monotonic)
        self._minute = -1
        self._rejected = self._not_shown = 0

    def concerns(self, code: int) -> bool:
        """Return whether requests of this code have a line."""
        return self._sink is not None and rule_of(code).is_audited

    def note(
        self,
        command: Command,
        *,
        user: str | None,
        address: str,
        outcome: str,
        code: int = 0,
        remark: str | None = None,
    ) -> None:
        """Write the line of a request. `code` and `remark` are those of the answer."""
        if outcome == REJECTED and not self._may_show():
            return
        not_shown, self._not_shown = self._not_shown, 0
        self._write(
            AuditRecord(
                time=self._now(),
                user=(user or "")[:FIELD_CHARS_MAX],
                address=address,
                request=_name(command.code),
                outcome=outcome,
                code=code,
                remark=(remark or "")[:REMARK_CHARS_MAX],
                resources=self._resources(command),
                fields=short_fields(command),
                settings=_changed_settings(command),
                not_shown=not_shown,
            )
        )

    def note_event(self, name: str, user: str, address: str, outcome: str, remark: str = "") -> None:
        """Write the line of an event without a request, such as a login."""
        if outcome == REJECTED and not self._may_show():
            return
        not_shown, self._not_shown = self._not_shown, 0
        short_user = user[:FIELD_CHARS_MAX]
        self._write(AuditRecord(self._now(), short_user, address, name, outcome, remark=remark, not_shown=not_shown))

    def _write(self, record: AuditRecord) -> None:
        if self._sink is None:
            return
        try:
            self._sink.append(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            self._log.warn("audit", "the audit log cannot be written: %s", error)

    def _now(self) -> str:
        now = datetime.datetime.fromtimestamp(self._clock.now_ms() / 1000, datetime.UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _may_show(self) -> bool:
        """Return whether this minute has room for one more rejected request, and count it."""
        minute = self._clock.monotonic_ms() // 60_000
        if minute != self._minute:
            self._minute, self._rejected = minute, 0
        self._rejected += 1
        if self._rejected > REJECTED_PER_MINUTE:
            self._not_shown += 1
            return False
        return True

    def _resources(self, command: Command) -> list[str]:
        try:
            rights = [right for need in rule_of(command.code).needs for right in need.rights(command, self._here)]
        except BodyError:
            return []
        return [right.resource.text[:FIELD_CHARS_MAX] for right in rights[:RESOURCES_MAX]]


DONE: Final = "done"
FAILED: Final = "failed"
REJECTED: Final = "rejected"


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


def _changed_settings(command: Command) -> list[str]:
    """Return the names of the settings that a request changes. The values may be secret, and stay out."""
    if command.code not in _CONFIGS:
        return []
    try:
        names: Iterable[str] = (one.name for one in properties.parse(bytes(command.body)))
        return [name[:FIELD_CHARS_MAX] for name in names][:RESOURCES_MAX]
    except ConfigError:
        return []
