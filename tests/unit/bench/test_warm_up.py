"""The warm-up before a measurement takes a fixed time, whatever the rate is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench import generator, sends_java
from bench.rawload import Load


@pytest.mark.parametrize(
    ("name", "is_first", "seconds"), [("Apache", True, 60), ("WheelMQ", True, 10), ("Apache", False, 6)]
)
def test_warm_up_with_raw_frames_takes_a_fixed_time(
    name: str, is_first: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Load] = []
    monkeypatch.setattr(generator, "generate", lambda address, topic, load: loads.append(load))
    target: Any = SimpleNamespace(name=name, broker="127.0.0.1:1")
    generator.warm_up(target, "T", Load(body_bytes=256, seconds=1), is_first=is_first)
    assert [(load.body_bytes, load.seconds) for load in loads] == [(256, seconds)]


def test_warm_up_with_the_java_client_takes_a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def send(client: object, seconds: float, case: object) -> dict[str, float]:
        asked.append(seconds)
        return {"sent": 100.0 * len(asked), "seconds": 10.0}

    monkeypatch.setattr(sends_java, "send", send)
    client: Any = None
    assert sends_java.warm(client) == 20.0  # only the rate at the end
    assert sum(asked) == sends_java.WARM_S == 60
