"""Mutations of a corpus. A seed determines them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.fuzz.targets import INPUT_BYTES_MAX


def mutations(inputs: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield endless inputs. Each one has up to six changes and mixes one or two of the given inputs."""
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
        case 0:  # replace a byte
            data[at : at + 1] = bytes((randomness.randrange(256),))
        case 1:  # flip a bit
            if at < len(data):
                data[at] ^= 1 << randomness.randrange(8)
        case 2:  # remove some bytes
            del data[at:end]
        case 3:  # repeat some bytes, once or many times
            data[at:at] = data[at:end] * randomness.choice((1, 1, 2, 30))
        case 4 | 5:  # insert a token
            data[at:at] = randomness.choice(tokens)
        case 6:  # replace some bytes by a token
            data[at:end] = randomness.choice(tokens)
        case 7:  # continue with another input from here
            other = randomness.choice(inputs)
            data[at:] = other[randomness.randrange(len(other) + 1) :]
        case _:  # change a number of four bytes a little
            number = int.from_bytes(data[at : at + 4], "big") + randomness.choice((-1, 1, -256, 1 << 31))
            data[at : at + 4] = (number & 0xFFFF_FFFF).to_bytes(4, "big")
