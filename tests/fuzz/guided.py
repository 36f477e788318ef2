"""Drive one target by coverage: `python -m tests.fuzz.guided TARGET SECONDS FOUND CRASHES`.

Needs atheris. The folder FOUND gets inputs that reach new branches. The folder CRASHES gets the input that ends the
run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found]

from tests.fuzz.targets import CORPUS, INPUT_BYTES_MAX, NAMES

MEMORY_MIB_MAX = 1024
"""Memory limit of the process. libFuzzer ends the run above it, or at a single allocation of this size."""
INPUT_S_MAX = 20
"""Wall-clock limit of one input. `targets.run` has a lower limit of processor time."""


def main() -> None:
    name, seconds, found, crashes = sys.argv[1:]
    assert name in NAMES, name
    with atheris.instrument_imports(include=["wheelmq", "lark"]):
        from tests.fuzz import targets

        target = targets.load(name)
    dictionary = Path(found).with_suffix(".tokens")
    dictionary.write_text("".join(f'"{_escaped(token)}"\n' for token in target.TOKENS))
    options = [
        f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-timeout={INPUT_S_MAX}",
        f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={crashes}/{name}-", f"-dict={dictionary}",
        "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, found, str(CORPUS / name)], lambda data: targets.run(target, data))
    atheris.Fuzz()


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    main()
