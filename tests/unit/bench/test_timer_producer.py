"""The parser for the output of Apache's benchmark."""

from __future__ import annotations

import pytest

from bench.timer_producer import _of_delays, _of_sends

SENDS = [
    "Send TPS: 4000, Max RT: 80, Average RT:   3.500, Send Failed: 0, Response Failed: 0",
    "Send TPS: 6000, Max RT: 91, Average RT:   2.500, Send Failed: 1, Response Failed: 2",
    "Send TPS: 0, Max RT: 91, Average RT:     NaN, Send Failed: 1, Response Failed: 2",
]
REST = "%25: 10, %50: 20; %80: 30; %90: 40; %99: 55; %99.9: 70"
DELAYS = [
    "Consume TPS: 0, Avg delayedDuration:     NaN, Max delayedDuration: 0, ",
    f"Consume TPS: 100, Avg delayedDuration:  10.000, Max delayedDuration: 60, delayDuration {REST}",
    f"Consume TPS: 300, Avg delayedDuration:  30.000, Max delayedDuration: 71, delayDuration {REST}",
    f"Consume TPS: 0, Avg delayedDuration:     NaN, Max delayedDuration: 72, delayDuration {REST}",
]


def test_send_lines_become_figures() -> None:
    expected = {"send_tps": 5000, "send_tps_max": 6000, "send_rt_ms": 3, "send_rt_max_ms": 91, "send_failed": 3}
    assert _of_sends(SENDS) == expected


def test_delay_lines_become_figures() -> None:
    expected = {"consume_tps": 300, "delay_ms": 25, "delay_50_ms": 20, "delay_99_ms": 55, "delay_max_ms": 72}
    assert _of_delays(DELAYS) == expected


def test_lines_without_sends_or_deliveries_give_no_figures() -> None:
    assert _of_sends(SENDS[2:]) == {} and _of_delays(DELAYS[:1]) == {}


def test_a_line_of_another_program_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="Send TPS"):
        _of_sends(["TPS: 5"])
