"""The targets pass for the corpus and for fixed mutations of it, in a minute for all targets.

Inputs that `make fuzz` finds are added to the corpus, so that these tests cover them.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import targets
from tests.fuzz.mutation import mutations
from tests.fuzz.targets import CORPUS, INPUT_BYTES_MAX, NAMES, TooSlow
from wheelmq.system.memory import trim_heap

COUNTS = {
    "frames": 12_000, "properties": 10_000, "expressions": 2500, "batches": 30_000, "bodies": 30_000, "files": 3000,
    "requests": 600, "access": 2500, "entrance": 2500,
}  # fmt: skip
SEED = 20_261_122
GROWTH_KIB_MAX = 200 << 10
"""Memory growth of this process within MEASURED inputs. An input of 4 KiB that takes hundreds of MiB fails."""
MEASURED = 100


@pytest.mark.parametrize("name", NAMES)
def test_a_target_passes_for_the_corpus_and_mutations(name: str) -> None:
    target, inputs = targets.load(name), targets.corpus(name)
    for data in inputs:
        target.check(data)  # the first input loads kernels, so no time limit applies
    mutated = itertools.islice(mutations(inputs, target.TOKENS, SEED), COUNTS[name])
    while some := list(itertools.islice(mutated, MEASURED)):
        before_kib = reset_peak_kib()
        for data in some:
            try:
                targets.run(target, data)
            except Exception as error:
                pytest.fail(f"{name} {data!r}: {type(error).__name__}: {error}")
        assert peak_kib() - before_kib < GROWTH_KIB_MAX


def reset_peak_kib() -> int:
    """Let the peak of this process begin again, at its memory without freed memory. Returns this memory."""
    trim_heap()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kib()


def peak_kib() -> int:
    """Return the peak of the process since the last reset (Linux: VmHWM)."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_the_peak_is_that_since_the_last_reset() -> None:
    taken = b"x" * (64 << 20)
    first_kib = reset_peak_kib()
    del taken
    assert reset_peak_kib() < first_kib - (60 << 10)
    assert len(b"x" * (64 << 20))
    assert peak_kib() > first_kib - (4 << 10)


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(NAMES)
    assert all(path.stat().st_size <= INPUT_BYTES_MAX for path in files)
    assert sum(path.stat().st_size for path in files) < 64 << 10


def test_a_seed_determines_the_mutations() -> None:
    def first(seed: int) -> list[bytes]:
        return list(itertools.islice(mutations([b"abc", b"defghij"], [b"T"], seed), 50))

    assert first(1) == first(1) != first(2)
    assert len(set(first(1))) > 30


def test_a_slow_input_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU_S_MAX", 0.001)

    class Slow:
        TOKENS = ()

        def check(self, data: bytes) -> None:
            randomness = Random(0)
            for _ in range(200_000):
                randomness.random()

    with pytest.raises(TooSlow, match="for 3 bytes"):
        targets.run(Slow(), b"abc")
