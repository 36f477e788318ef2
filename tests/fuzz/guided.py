"""Drive one target by coverage: `python -m tests.fuzz.guided TARGET SECONDS FOUND CRASHES`.

Runs where atheris can be imported. FOUND is a folder that takes inputs which reach something new, CRASHES one that
takes the input that ends the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found]

from tests.fuzz.targets import CORPUS, INPUT_BYTES_MAX, NAMES

MEMORY_MIB_MAX = 1024
"""Of the process. libFuzzer ends the run when it takes more, or asks for as much at once."""
INPUT_S_MAX = 20
"""Of one input, by the clock; what `targets.run` allows is less, by the processor's."""


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
