"""The search for free ports, which avoids those of servers that are starting."""

from __future__ import annotations

import socket

from wheelmq.cli.ports import HOST, free_port
from wheelmq.config.bounds import FAST_PORT_BELOW


def test_chosen_ports_do_not_collide_with_fast_ports() -> None:
    ports: list[int] = []
    for _ in range(5):
        ports.append(free_port(but=tuple(ports)))
    listened = {*ports, *(port - FAST_PORT_BELOW for port in ports)}
    assert len(listened) == 2 * len(ports)


def test_a_chosen_port_avoids_both_ports_of_another_server() -> None:
    found = free_port()
    for given in (found, found + FAST_PORT_BELOW, found - FAST_PORT_BELOW):
        other = free_port(but=(given,))
        assert {other, other - FAST_PORT_BELOW}.isdisjoint({given, given - FAST_PORT_BELOW})


def test_a_port_whose_fast_port_is_in_use_is_skipped() -> None:
    found = free_port()
    with socket.create_server((HOST, found - FAST_PORT_BELOW)):
        assert free_port() != found
