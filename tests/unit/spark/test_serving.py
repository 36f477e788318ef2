"""The brokers that are served, and reports about name servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.pipeline.supervisor import PipelineSupervisor
from wheelmq.spark import serving as module
from wheelmq.spark.serving import Serving
from wheelmq.system.clock import SystemClock


class NameServer:
    """A link to a name server that knows no broker or does not answer."""

    def __init__(self) -> None:
        self.problem = ""

    def ask(self, command: Command) -> Command:
        if self.problem:
            raise CallError(self.problem)
        return Command(code=ResponseCode.SUCCESS, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')

    def close(self) -> None:
        """Do nothing."""


def test_the_failure_and_the_recovery_of_name_servers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, Any]] = []
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    serving = Serving((), (), cast(Any, None), lambda what, **more: said.append((what, more["why"])))
    server = NameServer()
    cast(Any, serving)._links = [server]
    for problem in ("", "refused", "refused", "no answer in 2 s", "", ""):
        server.problem = problem
        serving.step()
    serving.stop()
    assert said == [("name servers", "refused"), ("name servers", None)]


def test_the_supervisor_prints_the_reports_about_name_servers(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = PipelineSupervisor([], tmp_path, clock=SystemClock(), on_change=told.append, namesrv=["here:1"])
    for why in ("here:1 refused", None):
        supervisor._heard({"event": "name servers", "why": why})
    assert told == ["no name server returns the list of brokers: here:1 refused", "a name server answers again"]
