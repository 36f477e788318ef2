"""A request of a sequence, before it is completed for one broker.

Texts contain placeholders for each run and broker:

    {T0} {G0} {C0}    names of topics, groups and clients that no other run has
    {now} {now+5000}  the time at which the run began, in milliseconds, with an optional offset
    <2.queueOffset>   a field of this broker's answer to step 2; `position` is the log position in its msgId

If a step has no answer, its fields are "0" and its position is NOWHERE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from compat.frames.wire import frame

ONEWAY = 2
NOWHERE = "999999999999"
"""A log position without a record."""

_NAME = re.compile(r"\{([TGC]\d)\}")
_NOW = re.compile(r"\{now([+-]\d+)?\}")
_ANSWER = re.compile(r"<(\d+)\.(\w+)>")

Answer = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A request. `body` is its bytes as Latin-1."""

    number: int
    code: int | str
    ext: Mapping[str, Any] | None = field(default_factory=dict)
    body: str = ""
    flag: int = 0
    version: int = 479

    @property
    def code_number(self) -> int:
        """The code as a number; a request may send it as a text."""
        return int(self.code)

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY != 0

    @property
    def is_silent(self) -> bool:
        """Whether both brokers send no answer: for a oneway request, and for the unknown end of a transaction."""
        return self.is_oneway or (self.code_number == 37 and (self.ext or {}).get("commitOrRollback") == "0")


@dataclass(frozen=True)
class Filling:
    """The values of placeholders for one run and broker."""

    prefix: str
    now_ms: int
    answers: Mapping[int, Answer]

    def text(self, text: str) -> str:
        """Return the text for this run and broker."""
        text = _NAME.sub(lambda found: f"{self.prefix}{found[1]}", text)
        text = _NOW.sub(lambda found: str(self.now_ms + int(found[1] or 0)), text)
        return _ANSWER.sub(lambda found: self._said(int(found[1]), found[2]), text)

    def _said(self, number: int, name: str) -> str:
        fields = (self.answers.get(number) or {}).get("extFields") or {}
        if name == "position":
            first = str(fields.get("msgId", "")).partition(",")[0]
            return str(int(first[-16:], 16)) if len(first) == 32 else NOWHERE
        return str(fields.get(name, "0"))

    def frame(self, step: Step) -> bytes:
        """Return the step's frame. Its opaque is its number."""
        header = {
            "code": step.code,
            "language": "JAVA",
            "version": step.version,
            "opaque": step.number,
            "flag": step.flag,
        }
        if step.ext is not None:
            header["extFields"] = {
                self.text(name): self.text(value) if isinstance(value, str) else value
                for name, value in step.ext.items()
            }
        return frame(header, self.text(step.body).encode("latin-1"))


def written(steps: Sequence[Step]) -> str:
    """Return a sequence as one line."""
    plain = (
        {name: value for name, value in asdict(step).items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        for step in steps
    )
    return json.dumps(list(plain), separators=(",", ":"))


def read(text: str) -> list[Step]:
    """Return the sequence in a line. Raises ValueError."""
    try:
        return [Step(**fields) for fields in json.loads(text)]
    except TypeError as error:
        raise ValueError(f"no sequence of requests: {error}") from None


_DEFAULTS: dict[str, Any] = {"body": "", "flag": 0, "version": 479}
