"""A start reads many records of a block's log at a time. The result is that of reading them one by one."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from tests.unit.delay.blocks.conftest import HOUR_MS, NEXT_HOUR_MS, BlockBench
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.refs import LONG_DELAY_MS
from wheelmq.formats.disk.block import BLOCK_TOPIC, BLOCK_UNIT, FLAG_BLANK, FLAG_DONE, FLAG_LONG
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store import recovery
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import InternedNames, LogDamaged, Rows


def record_by_record(block: Block, rows: Rows, names: InternedNames, *, is_named: bool) -> None:
    """The plain form of `Block._queue_again`: it decodes and checks each record alone."""
    for position in rows[:, col.POSITION].tolist():
        record = decode_record(block.log.files.file_at(position).view[position % block.log.files.file_bytes :])
        message, index, queue = record.message, record.queue_offset, block.queue
        due_ms = due_of(message.properties, record.store_ms)
        if not is_named:
            block.number = block.number or message.queue_id
            block.end_ms = max(block.end_ms, due_ms // 1000 * 1000 + 1000)  # type: ignore[assignment]
        where = f"record at {position}: "
        if message.topic != BLOCK_TOPIC or message.queue_id != block.number or index < queue.end:
            raise LogDamaged(errno.EIO, where + "it does not belong to this block, or is not in its place; put")
        if not block.start_ms <= due_ms < block.end_ms:
            raise LogDamaged(errno.EIO, where + f"it is due at {due_ms}, which is outside this block; put a good copy")
        queue.skip_to(index)
        queue.make_room()
        at = queue.end * BLOCK_UNIT.size
        found = BLOCK_UNIT.unpack(queue.files.file_at(at).view, at % queue.files.file_bytes)
        unit = (position, record.size, due_ms)
        is_same = unit == (found["position"], found["size"], found["due_ms"])
        flags = FLAG_LONG if due_ms - record.store_ms > LONG_DELAY_MS else 0
        queue.add(*unit, flags | (found["flags"] & FLAG_DONE if is_same else 0))


def recovered_state(bench: BlockBench) -> object:
    """Return every unit of every block, or the reason why the start fails."""
    try:
        bench.open_blocks()
    except LogDamaged as error:
        return str(error.strerror).split("; put")[0]
    units = {block.number: [part.tolist() for _, part in block.queue.chunks()] for block in bench.blocks}
    return units, [(block.number, block.start_ms, block.end_ms, block.log.end) for block in bench.blocks]


def fill(bench: BlockBench, randomness: Random) -> None:
    """Fill blocks with several log and queue files, flags, blanks and some checkpoints."""
    for i in range(randomness.randrange(20, 90)):
        due_ms = NEXT_HOUR_MS + HOUR_MS * randomness.randrange(2) + randomness.randrange(HOUR_MS)
        bench.put(due_ms, randomness.randbytes(randomness.randrange(1, 300)), KEYS=randomness.choice(["k", "é"]))
        match randomness.randrange(25):
            case 0:
                bench.flush()
            case 1:
                bench.checkpoint()
            case 2:
                bench.clock.advance(randomness.randrange(HOUR_MS))
            case 3:
                block = randomness.choice(list(bench.blocks))
                block.queue.flag_done(np.array([randomness.randrange(block.queue.end)]))
            case 4:
                bench.settle(randomness.choice(list(bench.blocks)).number, i + 5)
                bench.kill()


def damage(bench: BlockBench, randomness: Random) -> None:
    """Change random bytes, clear units or checkpoints, or repeat a record in place of the next."""
    files = sorted(path for path in bench.paths.blocks.rglob("*") if path.is_file())
    for _ in range(randomness.randrange(4)):
        path = randomness.choice(files)
        match randomness.randrange(5):
            case 0 if path.parent.name == "queue":
                path.write_bytes(bytes(path.stat().st_size))
            case 1 if path.name == "checkpoint":
                path.write_bytes(bytes(path.stat().st_size))
            case 2 if path.parent.name == "log":
                raw = path.read_bytes()
                end = int.from_bytes(raw[:4])
                path.write_bytes(raw[:end] * 2 + raw[2 * end :])
            case _:
                raw = bytearray(path.read_bytes())
                raw[randomness.randrange(min(len(raw), 2000))] = randomness.randrange(256)
                path.write_bytes(raw)


@pytest.mark.parametrize("seed", range(60))
def test_batched_recovery_equals_recovery_record_by_record(
    make_bench: Callable[[str], BlockBench], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    randomness = Random(seed)
    bench = make_bench(str(seed))
    fill(bench, randomness)
    bench.disk.release_locks()
    damage(bench, randomness)
    kept = bench.paths.root / "kept"
    shutil.copytree(bench.paths.blocks, kept)
    monkeypatch.setattr(recovery, "CHUNK_ROWS", randomness.choice([1, 3, 50_000]))
    together = recovered_state(bench)
    shutil.rmtree(bench.paths.blocks)
    shutil.copytree(kept, bench.paths.blocks)
    monkeypatch.setattr(Block, "_queue_again", record_by_record)
    assert recovered_state(bench) == together


def test_many_units_are_added_across_files_blanks_and_flags(bench: BlockBench) -> None:
    for i in range(5):
        bench.put(NEXT_HOUR_MS + i)
    [block] = bench.blocks
    queue = block.queue
    before = queue.read(4, 1).tolist()
    block.queue.flag_done(np.array([4]))
    queue.end = 4
    indices = np.array([4, 6, 7, 8, 31, 32])  # files of 8
    queue.add_many(indices, indices * 100 + 9, indices, NEXT_HOUR_MS + indices, np.full(6, FLAG_LONG))
    units = np.concatenate([units for _, units in queue.chunks(4)])
    assert queue.end == 33
    assert (np.flatnonzero(units["size"]) + 4).tolist() == indices.tolist()
    assert set(units["flags"][units["size"] > 0].tolist()) == {FLAG_LONG}
    assert set(units["flags"][units["size"] == 0].tolist()) == {FLAG_BLANK}
    queue.end = 4
    (position, size, due_ms, flags) = before[0]
    for moved, stays in ((0, False), (0, True), (1, False)):  # an unchanged unit keeps its flag
        queue.add_many(*(np.array([value]) for value in (4, position + moved, size, due_ms, flags)))
        assert bool(queue.read(4, 1)["flags"][0] & FLAG_DONE) is stays
        queue.flag_done(np.array([4]))
        queue.end = 4


def test_units_of_damaged_records_give_no_rows(bench: BlockBench, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(60):
        bench.put(NEXT_HOUR_MS + i, b"body of %d" % i)
    [block] = bench.blocks
    units = np.concatenate([units for _, units in block.queue.chunks()])
    hurt = {7: 0, 8: 90, 30: 28, 59: 90}  # a head, a body, a stored position, the last body
    for index, at in hurt.items():
        position = int(units["position"][index]) + at
        files: MappedSequence = block.log.files
        files.file_at(position).array[position % files.file_bytes] ^= 0x15
    units["position"][40] += 1  # a unit that names no record
    units["position"][41] = 1 << 50
    chosen = np.array([i for i in range(60) if i % 3 != 1 or i in (7, 40)])
    records = UnitRecords(block.log.files, block.number)
    with caplog.at_level(logging.CRITICAL):
        rows = records.read(chosen, units[chosen])
    there = rows[:, col.SIZE] > 0
    assert set(chosen[~there].tolist()) == ({*hurt} | {40, 41}) & set(chosen.tolist())
    assert rows[there, col.QUEUE_OFFSET].tolist() == chosen[there].tolist()
    assert {records.names.name(row) for row in rows[there, col.REAL_TOPIC].tolist()} == {"T"}
    assert (rows[there, col.REAL_QUEUE_ID] == 3).all() and (rows[there, col.DUE_MS] >= NEXT_HOUR_MS).all()
    assert not rows[~there].any()
    of_another = UnitRecords(block.log.files, block.number + 1).read(chosen, units[chosen])
    assert not of_another.any()
    index = int(chosen[there][0])
    assert block.record_at(LogPosition(int(units["position"][index]))) is not None


def test_units_that_a_start_wrote_again_survive_a_power_cut(bench: BlockBench) -> None:
    """After a kill the units are in memory alone, in more files than a start looks at."""
    for i in range(40):
        bench.put(NEXT_HOUR_MS + i)
        if i == 4:
            bench.flush()
            bench.checkpoint()
    bench.kill()
    bench.put(NEXT_HOUR_MS + 40)
    bench.checkpoint()
    blocks = bench.cut_power(1, keep=0.0)
    assert [block.queue.end for block in blocks] == [40]  # the last message was not flushed
