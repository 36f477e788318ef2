"""The targets hold for the corpus, and for mutations of it: the same ones each time, a minute of them all.

What `make fuzz` finds goes into the corpus, and so is tried here from then on.
"""

from __future__ import annotations

import itertools
import resource
from random import Random

import pytest

from tests.fuzz import targets
from tests.fuzz.mutation import mutations
from tests.fuzz.targets import CORPUS, INPUT_BYTES_MAX, NAMES, TooSlow

COUNTS = {
    "frames": 20_000, "properties": 16_000, "expressions": 4000, "batches": 50_000, "bodies": 50_000, "files": 5000,
    "requests": 1000,
}  # fmt: skip
SEED = 20_261_122
GROWTH_KIB_MAX = 200 << 10
"""Of this process over all inputs of a target: an input of 4 KiB that takes hundreds of MiB is found."""


@pytest.mark.parametrize("name", NAMES)
def test_a_target_holds(name: str) -> None:
    target, inputs = targets.load(name), targets.corpus(name)
    for data in inputs:
        target.check(data)  # the first of them loads kernels, which takes as long as it takes
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in itertools.islice(mutations(inputs, target.TOKENS, SEED), COUNTS[name]):
        try:
            targets.run(target, data)
        except Exception as error:
            pytest.fail(f"{name} {data!r}: {type(error).__name__}: {error}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < GROWTH_KIB_MAX


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(NAMES)
    assert all(path.stat().st_size <= INPUT_BYTES_MAX for path in files)
    assert sum(path.stat().st_size for path in files) < 64 << 10


def test_mutations_are_those_of_their_seed() -> None:
    def first(seed: int) -> list[bytes]:
        return list(itertools.islice(mutations([b"abc", b"defghij"], [b"T"], seed), 50))

    assert first(1) == first(1) != first(2)
    assert len(set(first(1))) > 30


def test_what_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU_S_MAX", 0.001)

    class Slow:
        TOKENS = ()

        def check(self, data: bytes) -> None:
            randomness = Random(0)
            for _ in range(200_000):
                randomness.random()

    with pytest.raises(TooSlow, match="for 3 bytes"):
        targets.run(Slow(), b"abc")
