"""Which brokers are served, where no name server tells."""

from __future__ import annotations

from typing import Any, cast

from wheelmq.cli.ports import free_port
from wheelmq.pipeline.serving import Serving


def test_a_name_server_that_does_not_answer_is_told_of_once() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    address = f"127.0.0.1:{free_port()}"
    serving = Serving((), (address,), cast(Any, None), lambda what, **more: said.append((what, more)))
    for _ in range(2):
        serving._next_look_s = 0.0
        serving.step()
    serving.stop()
    assert [what for what, _ in said] == ["unregistered"]
    assert address in said[0][1]["why"]
