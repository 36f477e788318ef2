"""The place of a decided batch at which the next slice begins."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.batch import UploadedChunk, UploadedRow, row_at, row_ends


class TopicChunk:
    """An uploaded chunk, and the topic of its rows."""

    def __init__(self, topic: str, chunk: UploadedChunk) -> None:
        self.topic, self.chunk = topic, chunk

    @functools.cached_property
    def ends(self) -> list[int]:
        """The end of each row, in bytes. Raises RowsWrong."""
        return row_ends(self.chunk.rows)

    @functools.cached_property
    def topic_bytes(self) -> int:
        return len(self.topic.encode())

    @functools.cached_property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The topic, and the rows after it, as kernels take them."""
        return np.frombuffer(self.topic.encode() + self.chunk.rows, np.uint8)

    def rows_from(self, at: int) -> Iterator[tuple[UploadedRow, int]]:
        """Yield each row from byte `at` on, with its end. Raises RowsWrong."""
        for end in self.ends:
            if end > at:
                yield row_at(self.chunk.rows, at, end), end
                at = end


class RowCursor:
    """The next row of a batch. It reads chunks as far as a slice needs them."""

    def __init__(self, chunks: Iterator[TopicChunk]) -> None:
        """Begin at the first row of `chunks`."""
        self._unread = chunks
        self._read: deque[TopicChunk] = deque()
        self.at = 0
        """The byte of the next row in the rows of the first chunk."""

    def chunk(self, i: int) -> TopicChunk | None:
        """Return a chunk, counted from that of the next row; None after the last. Raises UploadWrong, OSError."""
        while len(self._read) <= i:
            following = next(self._unread, None)
            if following is None:
                return None
            self._read.append(following)
        return self._read[i]

    def rows(self) -> Iterator[tuple[TopicChunk, UploadedRow, tuple[int, int]]]:
        """Yield the rows from the next one on, and the place after each for `move`. Raises UploadWrong, RowsWrong."""
        i, at = 0, self.at
        while (chunk := self.chunk(i)) is not None:
            for row, end in chunk.rows_from(at):
                yield chunk, row, (i, end)
            i, at = i + 1, 0

    def move(self, chunks: int, at: int) -> None:
        """Go to byte `at` of the rows of a chunk, counted from that of the next row."""
        for _ in range(chunks):
            self._read.popleft()
        self.at = at

    def skip(self, count: int) -> None:
        """Pass `count` rows. Raises UploadWrong, RowsWrong, OSError."""
        while count > 0 and (chunk := self.chunk(0)) is not None:
            if count < len(chunk.ends):
                self.at = chunk.ends[count - 1]
                return
            count -= len(chunk.ends)
            self.move(1, 0)
