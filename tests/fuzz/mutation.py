"""Mutations of a corpus that a seed decides: the same ones each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.fuzz.targets import INPUT_BYTES_MAX


def mutations(inputs: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Inputs without end, each made of one or two of those given by up to six changes."""
    randomness = Random(seed)
    while True:
        data = bytearray(randomness.choice(inputs))
        for _ in range(randomness.choice((1, 1, 1, 2, 3, 6))):
            _change(data, inputs, tokens, randomness)
        yield bytes(data[:INPUT_BYTES_MAX])


def _change(data: bytearray, inputs: Sequence[bytes], tokens: Sequence[bytes], randomness: Random) -> None:
    """Change `data` in one place."""
    at = randomness.randrange(len(data) + 1)
    end = min(len(data), at + randomness.choice((1, 1, 2, 4, 8, 40)))
    match randomness.randrange(9):
        case 0:  # a byte is another one
            data[at : at + 1] = bytes((randomness.randrange(256),))
        case 1:  # a bit is the other one
            if at < len(data):
                data[at] ^= 1 << randomness.randrange(8)
        case 2:  # some bytes are missing
            del data[at:end]
        case 3:  # some are there twice, or many times
            data[at:at] = data[at:end] * randomness.choice((1, 1, 2, 30))
        case 4 | 5:  # a token is there too
            data[at:at] = randomness.choice(tokens)
        case 6:  # a token is there in place of something
            data[at:end] = randomness.choice(tokens)
        case 7:  # from here on it is another one
            other = randomness.choice(inputs)
            data[at:] = other[randomness.randrange(len(other) + 1) :]
        case _:  # a number of four bytes is near another one
            number = int.from_bytes(data[at : at + 4], "big") + randomness.choice((-1, 1, -256, 1 << 31))
            data[at : at + 4] = (number & 0xFFFF_FFFF).to_bytes(4, "big")
