"""Changes of the rows of a task, as a stage of the pipeline may make them: allowed ones and hostile ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np

from wheelmq.delay.timer.rows import TurnRows
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_ROLL
from wheelmq.formats.disk.turn_row import KIND_INDEX, KIND_WALK
from wheelmq.testing.pipeline_model import Task

SHIFT_MS_MAX: Final = 6000
"""The longest shift that is allowed here. The smallest wheel of these tests allows more."""

Bend = Callable[[TurnRows, Random], TurnRows]


def delayed(rows: TurnRows, randomness: Random) -> TurnRows:
    """Return the rows with shifts of the timers that neither roll nor cancel."""
    for row in rows[rows["magic"] == MAGIC_DEFAULT]:
        row["shift_ms"] = 0
    shifts = [randomness.choice((0, 1, randomness.randint(0, SHIFT_MS_MAX))) for _ in rows]
    rows["shift_ms"] = np.where(rows["magic"] == MAGIC_DEFAULT, shifts, 0)
    return rows


def _of_any(name: str, change: Callable[[int, Random], int]) -> Bend:
    """Return the bend that changes the field `name` of one row."""

    def bend(rows: TurnRows, randomness: Random) -> TurnRows:
        at = randomness.randrange(len(rows))
        rows[name][at] = change(int(rows[name][at]), randomness)
        return rows

    return bend


def _doubled(rows: TurnRows, randomness: Random) -> TurnRows:
    return np.concatenate([rows, rows[[randomness.randrange(len(rows))]]])


def _dropped(rows: TurnRows, randomness: Random) -> TurnRows:
    return np.delete(rows, randomness.randrange(len(rows)))


DELAYED: Final = "delayed"
BENDS: Final[dict[str, Bend]] = {
    DELAYED: delayed,
    "dropped": _dropped,
    "doubled": _doubled,
    "all dropped": lambda rows, _: rows[:0],
    "negative shift": _of_any("shift_ms", lambda _, randomness: -randomness.randint(1, 100_000)),
    "too long a shift": _of_any("shift_ms", lambda _, randomness: randomness.choice((1 << 31, 1 << 62, (1 << 63) - 1))),
    "fires earlier": _of_any("fire_ms", lambda was, randomness: was - randomness.randint(1, 5000)),
    "fires later": _of_any("fire_ms", lambda was, randomness: was + randomness.randint(1001, 5000)),
    "another position": _of_any("position", lambda was, randomness: was + randomness.choice((-1, 1, 300))),
    "another size": _of_any("size", lambda was, _: was + 1),
    "another origin": _of_any("origin", lambda was, randomness: was + randomness.choice((-1, 1, 1 << 50))),
    "another slot": _of_any("slot_ms", lambda was, _: was + 1000),
    "rolls": _of_any("magic", lambda was, _: was ^ MAGIC_ROLL),
}
"""Changes by name. Only the first one may be committed."""


def bent(task: Task, bend: Bend, randomness: Random) -> TurnRows:
    """Return the changed rows of a task, in the order that the upload gives them."""
    if not len(task.rows) or (bend is delayed and task.kind not in (KIND_INDEX, KIND_WALK)):
        return task.rows
    rows = bend(task.rows.copy(), randomness)
    rows = rows[np.lexsort((rows["origin"], rows["fire_ms"]))]
    rows["order"] = np.argsort(rows["origin"], kind="stable")
    return rows
