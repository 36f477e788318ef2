"""Bodies compressed with zlib, and with formats that the client cannot read."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from wheelmq.client import compression
from wheelmq.client.compression import CompressionError, compress, expand


def test_a_body_is_compressed_if_it_is_long_and_shrinks() -> None:
    body = b"long " * 1000
    packed, flag = compress(body, 4096)
    assert flag == 0x301 and len(packed) < len(body) and expand(packed, flag) == body
    assert compress(body, None) == compress(body, len(body)) == (body, 0)
    noise = Random(0).randbytes(5000)
    assert compress(noise, 10) == (noise, 0)


def test_a_body_of_an_old_client_is_expanded_as_zlib() -> None:
    assert expand(zlib.compress(b"x"), 0x1) == b"x"
    assert expand(b"plain", 0x300) == b"plain"


@pytest.mark.parametrize(
    ("body", "flag", "problem"),
    [
        (b"", 0x101, "LZ4"),
        (b"", 0x201, "Zstandard"),
        (b"", 0x401, "0x400"),
        (b"no zlib", 0x301, "does not inflate"),
        (zlib.compress(b"x" * 1000)[:-6], 0x301, "is incomplete"),
    ],
)
def test_the_error_names_why_a_body_cannot_be_expanded(body: bytes, flag: int, problem: str) -> None:
    with pytest.raises(CompressionError, match=problem):
        expand(body, flag)


def test_a_body_beyond_the_size_limit_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "EXPANDED_BYTES_MAX", 1000)
    with pytest.raises(CompressionError, match="more than 1000 bytes"):
        expand(zlib.compress(bytes(1 << 20)), 0x301)
    assert expand(zlib.compress(bytes(1000)), 0x301) == bytes(1000)
