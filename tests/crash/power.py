"""The states of a disk that a power cut may leave at one moment of a run: its pages, sectors and names."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from wheelmq.system.mapped_file import Bytes, MappedFile
from wheelmq.testing.disk import SimulatedDisk

SECTOR_BYTES: Final = 512
PAGE_SECTORS: Final = 8
STATES_EACH: Final = 12
"""States generated at one moment, if they differ."""

Content = dict[Path, Bytes]


class RecordingDisk(SimulatedDisk):
    """Knows the content of each mapped file, and its part on disk.

    Calls `look` at each place where the power may fail.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look
        self.files: dict[Path, MappedFile] = {}
        self.synced: Content = {}
        self.kept: Content = {}
        """Like `synced`, with the pages that were written back since."""

    def map(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> MappedFile:
        file = super().map(path, size, sparse=sparse, room_bytes=room_bytes)
        self.files[path] = file
        if path not in self.synced:
            self.synced[path] = file.array.copy()
            self.kept[path] = file.array.copy()
        return file

    def note_sync(self, file: MappedFile, stop: int) -> None:
        self._look()
        super().note_sync(file, stop)
        self.synced[file.path][:stop] = file.array[:stop]
        self.kept[file.path][:stop] = file.array[:stop]
        self._look()

    def sync_folder(self, folder: Path) -> None:
        self._look()
        super().sync_folder(folder)

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False, private: bool = False) -> None:
        self._look()
        super().replace(path, data, keep_previous=keep_previous, private=private)
        self._look()

    def remove(self, path: Path) -> None:
        super().remove(path)
        for known in (self.files, self.synced, self.kept):
            known.pop(path, None)


@dataclass
class State:
    """One state: its differences from the state that processes see."""

    kind: str
    files: dict[Path, Bytes | None]
    """The content of each file; None for a missing file."""
    folders: dict[Path, bool]
    """Whether each folder exists."""

    def mark(self, seed: int) -> int:
        """Return a checksum that is equal for equal states."""
        names = [*((str(path), found is None) for path, found in self.files.items()), *self.folders.items()]
        held = (found.tobytes() for found in self.files.values() if found is not None)
        return crc32(b"".join([repr(names).encode(), *held]), seed)

    def put(self, root: Path, target: Path) -> None:
        """Write the store at `root` in this state to `target`."""
        shutil.rmtree(target, ignore_errors=True)
        lost = [folder for folder, is_there in self.folders.items() if not is_there]
        folders = {folder for folder, is_there in self.folders.items() if is_there}
        files = set(self.files)
        for folder, _, names in os.walk(root):
            folders.add(Path(folder))
            files |= {Path(folder, name) for name in names}
        folders |= {path.parent for path in files}
        for folder in folders:
            if not any(folder.is_relative_to(gone) for gone in lost):
                (target / folder.relative_to(root)).mkdir(parents=True, exist_ok=True)
        for path in files:
            copy = target / path.relative_to(root)
            if not copy.parent.is_dir():
                continue
            if path not in self.files:
                shutil.copyfile(path, copy)
            elif (found := self.files[path]) is not None:
                copy.write_bytes(found.tobytes())
            else:
                continue
            copy.chmod(0o600)  # a broker takes keys only from private files


class Dirty:
    """The unsynced changes: differing sectors by file, and names. Generates the states that they may leave."""

    def __init__(self, disk: RecordingDisk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance
        self._sectors: dict[Path, Any] = {}
        for path, file in disk.files.items():
            differing = np.flatnonzero(file.array != disk.synced[path])
            if len(differing):
                self._sectors[path] = np.unique(differing // SECTOR_BYTES)
        self._pages = [
            (path, page)
            for path, sectors in self._sectors.items()
            for page in np.unique(sectors // PAGE_SECTORS).tolist()
        ]

    def __len__(self) -> int:
        return len(self._pages) + sum(map(len, self._disk.names.values()))

    def write_back(self) -> None:
        """Write some pages to disk, as the kernel may do at any time."""
        for path, page in self._pages:
            if self._chance.random() < 0.5:
                self._copy(self._disk.kept[path], path, range(page * PAGE_SECTORS, (page + 1) * PAGE_SECTORS))

    def states(self) -> Iterator[State]:
        """Yield states of the disk: the content of unsynced files, and the existing names.

        All other files are synced.
        """
        chance, disk = self._chance, self._disk
        yield self._named("all unsynced lost", self._build(disk.synced, 0.0), keeps_names=0.0)
        for _ in range(5):
            base = chance.choice((disk.synced, disk.kept))
            yield self._named("some pages written", self._build(base, chance.choice((0.1, 0.3, 0.5, 0.7, 0.9))))
        for _ in range(STATES_EACH - 6 if self._pages else 0):
            base = chance.choice((disk.synced, disk.kept))
            content = self._build(base, chance.choice((0.5, 1.0)), but=self._last)
            path, page = self._last
            first = page * PAGE_SECTORS
            whole = range(first, first + chance.randint(1, PAGE_SECTORS - 1))
            some = [first + i for i in range(PAGE_SECTORS) if chance.random() < 0.5]
            self._copy(content[path], path, whole if chance.random() < 0.7 else some)
            yield self._named("last page torn", content)

    @property
    def _last(self) -> tuple[Path, int]:
        """Return the last unsynced page of a log, or of any file if no log has one."""
        return max(self._pages, key=lambda page: (page[0].parent.name in ("commitlog", "log"), page[0].name, page[1]))

    def _build(self, base: Content, keep: float, *, but: tuple[Path, int] | None = None) -> Content:
        """Return content that has each page but `but` from memory with probability `keep`, otherwise from `base`."""
        content = {path: base[path].copy() for path in self._sectors}
        for path, page in self._pages:
            if (path, page) != but and self._chance.random() < keep:
                self._copy(content[path], path, range(page * PAGE_SECTORS, (page + 1) * PAGE_SECTORS))
        return content

    def _copy(self, target: Bytes, path: Path, sectors: range | list[int]) -> None:
        now = self._disk.files[path].array
        for sector in sectors:
            at = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
            target[at] = now[at]

    def _named(self, kind: str, content: Content, *, keeps_names: float = 0.5) -> State:
        """Return the state of `content` with the first changes of each folder's names since its sync.

        A journal keeps order.
        """
        files: dict[Path, Bytes | None] = dict(content)
        folders: dict[Path, bool] = {}
        for changes in self._disk.names.values():
            kept = len(changes)
            while kept and self._chance.random() >= keeps_names:
                kept -= 1
            for change in reversed(changes[kept:]):
                if change.is_folder:
                    folders[change.path] = change.was_there
                else:
                    files[change.path] = change.on_disk()
        return State(kind, files, folders)
