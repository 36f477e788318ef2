"""A sequence of mapped files of one size that is read as one array of bytes (RocketMQ: MappedFileQueue).

A file is named by the position of its first byte. Expiry removes first files, so `start` is not always 0.
"""

from __future__ import annotations

import errno
import itertools
import mmap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheelmq.formats.disk.paths import file_name, file_start
from wheelmq.system.disk import Disk, DiskFull
from wheelmq.system.mapped_file import Bytes, MappedFile

ZERO_STEP_BYTES: Final = 1 << 16
"""Bytes per step of zeroing by `cut`. A step that is zero already is not written."""
LET_GO_AT_ONCE: Final = 2
"""Number of files checked for unmapping when another file is mapped."""
ROOM_SHARE: Final = 8
NAMES_ABOVE: Final = 2
"""Number of parent folders of a sparse sequence whose names may be as new as its own."""


def room_step(file_bytes: int, most: int) -> int:
    """Return the bytes of disk space that a file takes at a time: an eighth of it, but at most `most`."""
    return min(most, max(file_bytes // ROOM_SHARE, mmap.PAGESIZE), file_bytes)


class MappedFiles:
    """The mapped files of one or many sequences; with `most`, about that many at most.

    The least recently used file is dropped. Views of it stay valid. A file that may hold unsynced bytes stays mapped:
    the system reports a disk error only through a file that was open at the time of the error.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._files: OrderedDict[tuple[MappedSequence, int], MappedFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, sequence: MappedSequence, start: int) -> MappedFile | None:
        key = (sequence, start)
        file = self._files.get(key)
        if file is not None and self._most is not None:
            self._files.move_to_end(key)
        return file

    def add(self, sequence: MappedSequence, start: int, file: MappedFile) -> None:
        self._files[sequence, start] = file
        if self._most is None:
            return
        for _ in range(min(LET_GO_AT_ONCE, len(self._files) - self._most)):
            key = next(iter(self._files))
            if self._files[key].is_written:
                self._files.move_to_end(key)
            else:
                del self._files[key]

    def drop(self, sequence: MappedSequence, start: int) -> None:
        self._files.pop((sequence, start), None)


class MappedSequence:
    """The mapped files of one folder.

    With `room_bytes` the files get disk space in steps of this size. With `step_bytes` they are sparse as well: neither
    their bytes nor their names are durable before `sync_job` has run. Sparse files suit data that can be derived from
    other files.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_bytes: int,
        *,
        step_bytes: int | None = None,
        room_bytes: int | None = None,
        mapped: MappedFiles | None = None,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self.file_bytes = file_bytes
        self._is_sparse = step_bytes is not None
        self._step_bytes = min(step_bytes or room_bytes or file_bytes, file_bytes)
        starts = sorted(start for name in disk.list(folder) if (start := file_start(name)) is not None)
        for earlier, later in itertools.pairwise(starts):
            if later - earlier != file_bytes:
                why = (
                    f"files {earlier} and {later} are {later - earlier} bytes apart, not {file_bytes} bytes apart as "
                    "configured: keep the file size with which the store was created (of the log: log_file_bytes)"
                )
                raise OSError(errno.EINVAL, why, str(folder))
        self._mapped = MappedFiles() if mapped is None else mapped
        self._ahead: dict[int, MappedFile] = {}
        """Files created ahead, by start. They follow the end."""
        self._room = (0, 0)
        """The range of bytes of one file that is known to have disk space."""
        self._has_new_names = bool(starts)
        """Whether file names may not be on disk yet, also of existing files: a killed process may have created them."""
        self.start = starts[0] if starts else 0
        self.end = starts[-1] + file_bytes if starts else 0

    def base_of(self, position: int) -> int:
        """Return the start of the file that holds byte `position`."""
        return position - position % self.file_bytes

    def file_at(self, position: int) -> MappedFile:
        """Return the file that holds byte `position`. It must exist."""
        start = self.base_of(position)
        assert self.start <= start < self.end, (position, self.start, self.end)
        file = self._mapped.get(self, start)
        if file is None:
            file = self._map(start)
            self._mapped.add(self, start, file)
        return file

    def _map(self, start: int) -> MappedFile:
        path = self.folder / file_name(start)
        return self._disk.map(path, self.file_bytes, sparse=self._is_sparse, room_bytes=self._step_bytes)

    def grow(self, position: int, size: int = 1) -> MappedFile:
        """Return the file for writing `size` bytes at `position`. Creates it and allocates space. Raises DiskFull.

        A sequence without files begins at that file. Otherwise a new file must be the next one.
        """
        start = position - position % self.file_bytes
        if self.start == self.end:
            self.start = self.end = start
        if start == self.end:
            file = self._ahead.pop(start, None) or self._map(start)
            self._mapped.add(self, start, file)
            self.end = start + self.file_bytes
            self._has_new_names = True
        else:
            file = self.file_at(position)
        if not (self._room[0] <= position and position + size <= self._room[1]):
            self._give_room(file, position - start, size)
        file.is_written = True
        return file

    def _give_room(self, file: MappedFile, at: int, size: int) -> None:
        first = at - at % self._step_bytes
        stop = min(-(-(at + size) // self._step_bytes) * self._step_bytes, self.file_bytes)
        assert at + size <= stop, (at, size)
        self._disk.give_room(file.path, first, stop)
        start = int(file.path.name)
        if not self.note_room(start + first, start + stop):
            self._room = (start + first, start + stop)

    def room_job(self, file: MappedFile, at: int, stop: int) -> Callable[[], bool]:
        """Return the job that gives room to bytes `at` to `stop` of a file. It may run off the loop. Raises DiskFull.

        The job returns whether it gave room. Then call `note_room`.
        """
        return lambda: self._disk.give_room_ahead(file.path, at, stop)

    def note_room(self, start: int, stop: int) -> bool:
        """Note that the bytes `start` to `stop` have disk space. Returns whether they join the known room."""
        first, last = self._room
        if not self.base_of(start) <= first <= start <= last:
            return False
        self._room = (first, max(last, stop))
        return True

    def room_end(self, position: int) -> int:
        """Return the end of the bytes that may be written from `position` on without a call of `grow`."""
        return self._room[1] if self._room[0] <= position < self._room[1] else position

    def ahead_job(self, count: int, populate_bytes: int) -> Callable[[], list[MappedFile]]:
        """Return the job that creates the next `count` files and populates the first bytes of each. Raises DiskFull.

        The job may run off the loop. Pass its result to `take_ahead`. Further files than the next are created only if
        the disk has twice the space that they take at first, because queues need space too.
        """
        starts = [start for i in range(count) if (start := self.end + i * self.file_bytes) not in self._ahead]
        is_next = self.end

        def job() -> list[MappedFile]:
            made: list[MappedFile] = []
            for start in starts:
                if start > is_next and self._disk.free_bytes(self.folder) < 2 * self._step_bytes:
                    break
                try:
                    file = self._map(start)
                except DiskFull:
                    if start == is_next:
                        raise
                    break
                file.populate(0, min(populate_bytes, self._step_bytes))
                made.append(file)
            return made

        return job

    @property
    def made_to(self) -> int:
        """End of the last existing file, including files created ahead."""
        end = self.end
        while end in self._ahead:
            end += self.file_bytes
        return end

    def made_at(self, position: int) -> MappedFile:
        """Return the file that holds byte `position`, before `made_to`: also one created ahead."""
        return self._ahead.get(position - position % self.file_bytes) or self.file_at(position)

    def take_ahead(self, files: list[MappedFile]) -> None:
        """Keep files created ahead until the sequence grows into them."""
        for file in files:
            start = int(file.path.name)
            if start >= self.end:
                self._ahead[start] = file

    def read(self, position: int, size: int) -> memoryview:
        file = self.file_at(position)
        at = position % self.file_bytes
        assert at + size <= self.file_bytes, (position, size)
        return file.view[at : at + size]

    def written_bytes(self, start: int) -> int:
        """Return the number of bytes at the beginning of the file at `start` that may hold data, before any hole."""
        found = self._disk.written(self.folder / file_name(start), 0, self.file_bytes)
        return found[0][1] if found and found[0][0] == 0 else 0

    def pieces(self, position: int, end: int) -> list[tuple[int, MappedFile, int, int]]:
        """Return the bytes from `position` to `end` by file: (position, file, first byte in it, end byte in it)."""
        found = []
        while position < end:
            at = position % self.file_bytes
            stop = min(self.file_bytes, at + end - position)
            found.append((position, self.file_at(position), at, stop))
            position += stop - at
        return found

    def sync_job(self, position: int, end: int) -> Callable[[], None]:
        """Return the job that syncs the bytes from `position` to `end`. It may run off the loop.

        It syncs the whole of a sparse file, because `MappedFiles` may drop the file later. In other files it syncs no
        page after `end`.
        """
        parts = [(file, at, stop) for _, file, at, stop in self.pieces(position, end)]
        folders = [self.folder, *self.folder.parents[:NAMES_ABOVE]] if self._is_sparse and self._has_new_names else []
        self._has_new_names = False

        def sync() -> None:
            try:
                for file, at, stop in parts:
                    file.is_written = False
                    file.sync(stop, new_from=None if self._is_sparse else at)
                for folder in folders:
                    self._disk.sync_folder(folder)
            except OSError:
                self._has_new_names = bool(folders)
                for file, _, _ in parts:
                    file.is_written = True
                raise

        return sync

    def synced(self, position: int) -> bool:
        """Return whether all bytes before `position` in its file were synced. Only assertions use it."""
        if position <= self.start:
            return True
        file = self.file_at(position - 1)
        return file.synced_bytes >= (position - 1) % self.file_bytes + 1

    def drop_before(self, position: int) -> Callable[[], None] | None:
        """Drop the files that end at or before `position`, except the last. Returns the job that removes them, or None.

        The job may run off the loop. It also removes files that an earlier job failed to remove. The oldest file goes
        first, so that the rest is contiguous even after a stop. Existing views stay readable.
        """
        start = min(position - position % self.file_bytes, self.end - self.file_bytes)
        gone = range(self.start, start, self.file_bytes)
        if not gone:
            return None
        for first in gone:
            self._mapped.drop(self, first)
        self.start = start

        def job() -> None:
            found = (file_start(name) for name in self._disk.list(self.folder))
            for first in sorted(first for first in found if first is not None and first < start):
                self._disk.remove(self.folder / file_name(first))

        return job

    def cut(self, position: int) -> None:
        """Zero the bytes from `position` on in its file and remove the later files. All of this is on disk on return.

        The last file is removed first, so that the remaining files are contiguous even after a stop.
        """
        first_gone = -(-position // self.file_bytes) * self.file_bytes
        gone = range(max(first_gone, self.start), self.end, self.file_bytes)
        for start in reversed(gone):
            self._mapped.drop(self, start)
            self._disk.remove(self.folder / file_name(start))
        if gone:
            self._disk.sync_folder(self.folder)
            self._room = (0, 0)
        self.end = max(self.start, min(self.end, first_gone))
        at = position % self.file_bytes
        if at and self.start <= position < self.end:
            path = self.folder / file_name(position - at)
            written = self._disk.written(path, at, self.file_bytes)
            changed = [_zero(self.file_at(position).array[first:stop]) for first, stop in written]
            if any(changed) or (changed and not self._is_sparse):
                # A process that zeroed these bytes may have been killed before its sync. A later sync reaches them
                # only in a sparse file.
                file = self.file_at(position)
                file.sync(file.synced_bytes)


def _zero(array: Bytes) -> bool:
    """Zero `array`, but not zero bytes: a write must be synced. Returns whether it held anything else."""
    changed = False
    for at in range(0, len(array), ZERO_STEP_BYTES):
        step = array[at : at + ZERO_STEP_BYTES]
        if step.any():
            step[:] = 0
            changed = True
    return changed


class HeldFiles:
    """The files of a sequence that hold bytes `first` to `last` now, for use off the loop.

    The sequence itself must not be used there: it would create removed files again.
    """

    def __init__(self, files: MappedSequence, first: int, last: int) -> None:
        self.file_bytes = files.file_bytes
        starts = range(max(first - first % self.file_bytes, files.start), min(last + 1, files.end), self.file_bytes)
        self._files = {start: files.file_at(start) for start in starts}
        self.start = starts.start
        self.end = starts[-1] + self.file_bytes if starts else self.start

    def file_at(self, position: int) -> MappedFile:
        file = self._files.get(position - position % self.file_bytes)
        if file is None:
            raise LookupError(f"no file holds position {position}: the files hold {self.start} to {self.end}")
        return file

    def read(self, position: int, size: int) -> memoryview:
        at = position % self.file_bytes
        assert at + size <= self.file_bytes, (position, size)
        return self.file_at(position).view[at : at + size]
