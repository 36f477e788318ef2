"""The objects of a target by name, and the points that they hold.

    wheelmq-ship.json                identity of the target
    new/<capture>                    one capture: chunks, files and the point
    log/<first>-<last>               chunks of the commit log
    blocks/<first>-<last>[.<n>]      chunks of blocks
    points/<first>-<last>[.base]     files and points of merged captures, written after their chunks

Numbers of captures have 16 digits. Each object is complete once it is there. An object of points makes the objects of
the captures in it obsolete: these are removed afterwards, and a reader ignores those that are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from wheelmq.backup.index import Point
from wheelmq.backup.objects import TargetDamaged, own, read_index
from wheelmq.backup.target import IDENTITY, Target

NEW: Final = "new"
POINTS: Final = "points"
LOG: Final = "log"
BLOCKS: Final = "blocks"
FORMAT: Final = 1
ATTEMPTS: Final = 5
"""Attempts to read the points, while a shipper merges objects."""
BASE: Final = ".base"
"""The end of the name of an object whose only point replaces all points up to its last capture."""
_NAME: Final = re.compile(r"(\d{16})(?:-(\d{16}))?(?:\.base)?")


class NoTarget(OSError):
    """The target holds no shipped store."""


class TargetIdentity(msgspec.Struct):
    """The content of the identity."""

    format: int
    history: str
    """A random name of the history of the target."""
    made_ms: int


class PointObject(NamedTuple):
    """An object that holds points. Its places name their objects."""

    name: str
    first: int
    last: int
    points: list[Point]
    content: bytes | None = None
    """The whole object, if it is still in memory."""


def object_name(folder: str, first: int, last: int | None = None) -> str:
    return f"{folder}/{first:016d}" if last is None else f"{folder}/{first:016d}-{last:016d}"


def read_identity(target: Target) -> TargetIdentity | None:
    """Return the identity of the target; None if it has none. Raises TargetDamaged, OSError."""
    try:
        raw = target.read(IDENTITY)
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(raw, type=TargetIdentity)
    except msgspec.DecodeError as error:
        raise TargetDamaged(f"{IDENTITY} cannot be decoded: {error}") from None
    if found.format != FORMAT:
        raise TargetDamaged(f"the target has format {found.format}, and this WheelMQ reads {FORMAT}: use a newer one")
    return found


def write_identity(target: Target, identity: TargetIdentity) -> None:
    target.write(IDENTITY, msgspec.json.encode(identity))


def read_catalog(target: Target) -> list[PointObject]:
    """Return the objects with points, in order and without gaps. Raises TargetDamaged, OSError."""
    problem: OSError | None = None
    for _ in range(ATTEMPTS):
        try:
            return [_read(target, *one) for one in _cover(_listed(target))]
        except (FileNotFoundError, TargetDamaged) as error:
            problem = error
    assert problem is not None
    if isinstance(problem, FileNotFoundError):
        raise TargetDamaged(f"{problem.filename} was removed while it was read")
    raise problem


def _listed(target: Target) -> list[tuple[int, int, str]]:
    """Return the first and the last capture of each object with points, and its name.

    The captures are listed before the merged objects: a capture that is merged in between is in one of the lists.
    """
    names = [*target.names(NEW), *target.names(POINTS)]
    found = []
    for name in names:
        match = _NAME.fullmatch(name.rpartition("/")[2])
        if match is not None:
            found.append((int(match[1]), int(match[2] or match[1]), name))
    return found


def _cover(listed: Iterable[tuple[int, int, str]]) -> list[tuple[str, int, int]]:
    """Return objects that together hold each capture once. Raises TargetDamaged.

    The write of an object may have been reported as failed, and others followed without it. So the largest object
    counts only if the others have all captures after it.
    """
    ranked = sorted(listed, key=lambda one: (one[0], -one[1], not one[2].endswith(BASE)))
    end = max((last for _, last, _ in ranked), default=0)
    firsts, useful = {end + 1}, []
    for first, last, name in reversed(ranked):
        if last + 1 in firsts:
            firsts.add(first)
            useful.append((first, last, name))
    chosen: list[tuple[str, int, int]] = []
    following = 1
    for first, last, name in reversed(useful):
        if first == following:
            chosen.append((name, first, last))
            following = last + 1
    if following != end + 1:
        raise _missing(ranked)
    return chosen


def _missing(ranked: Iterable[tuple[int, int, str]]) -> TargetDamaged:
    """Return the error that names the first missing capture."""
    following = 1
    for first, last, name in ranked:
        if first > following:
            return TargetDamaged(f"capture {following} is missing: the next object is {name}")
        following = max(following, last + 1)
    return TargetDamaged(f"objects of captures before {following} overlap, and none continues the others")


def _read(target: Target, name: str, first: int, last: int) -> PointObject:
    content = target.read(name)
    index = read_index(name, content)
    points = [placed(point, name) for point in index.points]
    if not points or points[0].first != first or points[-1].last != last:
        raise TargetDamaged(f"{name} holds other captures than its name says")
    return PointObject(name, first, last, points)


def placed(point: Point, name: str) -> Point:
    """Return a point whose places name their objects."""
    return msgspec.structs.replace(point, chunks=own(name, point.chunks), files=own(name, point.files))
