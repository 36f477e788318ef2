"""The options of the command line for the Spark session that the launcher opens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HEAP: Final = "512m"
"""Heap of the driver's JVM, enough for the turns of some brokers."""
_SIZE: Final = re.compile(r"[1-9]\d*[kmgKMG]")
_UI: Final = {"spark.ui.enabled": "true", "spark.sql.streaming.ui.enabled": "true"}
_OWN: Final = {"spark.master": "--master", "spark.driver.memory": "--driver-memory", "spark.app.name": "--name"}
"""Settings that another option gives."""


@dataclass(frozen=True)
class SessionOptions:
    """Settings of Spark as NAME=VALUE, the heap of the driver's JVM, and whether Spark serves its UI."""

    conf: Sequence[str] = ()
    driver_memory: str = HEAP
    ui: bool = False

    def __post_init__(self) -> None:
        """Check the options. Raises ValueError with the remedy."""
        if not _SIZE.fullmatch(self.driver_memory):
            raise ValueError(f"--driver-memory {self.driver_memory!r} is not a size: write it as 512m or 2g")
        for word in self.conf:
            name, sign, _ = word.partition("=")
            if not sign or not name.startswith("spark."):
                raise ValueError(f"--conf {word!r} is not a setting of Spark: write it as spark.NAME=VALUE")
            if name in _OWN:
                raise ValueError(f"--conf {name} has no effect: use {_OWN[name]}")

    def settings(self) -> dict[str, str]:
        """Return the settings of Spark. Those of `conf` override the others."""
        given = {name: value for name, _, value in (word.partition("=") for word in self.conf)}
        return {**(_UI if self.ui else {}), **given}

    def words(self) -> list[str]:
        """Return the options as words of a command line."""
        words = [word for setting in self.conf for word in ("--conf", setting)]
        words += ["--driver-memory", self.driver_memory] if self.driver_memory != HEAP else []
        return [*words, "--ui"] if self.ui else words
