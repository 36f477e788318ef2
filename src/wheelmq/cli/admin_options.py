"""Options of `wheelmq admin`, by mqadmin's names and by ours, and the choice of brokers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wheelmq.cli.clients import open_admin
from wheelmq.cli.errors import DEFAULT_NAMESRV, plain_errors
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
AskAdmin = Callable[[Callable[["Admin"], Awaitable[R]]], R]
"""Runs a function with an Admin of the servers that the options name. Returns its result."""

topic_option = click.option("-t", "--topic", required=True, help="The topic.")
group_option = click.option(
    "-g", "--group", "--groupName", "--consumerGroup", "group", required=True, help="The group."
)
broker_option = click.option(
    "-b", "--broker", "--brokerAddr", "--brokerName", "broker", help="A broker, by its name or HOST:PORT."
)
cluster_option = click.option("-c", "--cluster", "--clusterName", "cluster", help="The brokers of this cluster.")
_namesrv_option = click.option(
    "-n",
    "--namesrv",
    "--namesrvAddr",
    "namesrv",
    envvar=["WHEELMQ_NAMESRV", "NAMESRV_ADDR"],
    default=DEFAULT_NAMESRV,
    show_default=True,
    help="Name servers: HOST:PORT;HOST:PORT. A host without a port means port 9876.",
)


def with_admin(command: F) -> F:
    """Add the options for the servers. The command gets `ask`, which runs a function with an Admin."""

    @functools.wraps(command)
    def with_servers(*args: Any, **values: Any) -> Any:
        namesrv, tls = values.pop("namesrv"), values.pop("tls")

        def ask(work: Callable[[Admin], Awaitable[Any]]) -> Any:
            async def run() -> Any:
                async with open_admin(namesrv, tls) as admin:
                    return await work(admin)

            with plain_errors(namesrv):
                return asyncio.run(run())

        return command(*args, ask=ask, **values)

    decorated: Any = _namesrv_option(tls_options(with_servers))
    found: F = decorated
    return found


async def chosen_brokers(admin: Admin, broker: str | None, cluster: str | None = None) -> list[str]:
    """Return the names of the masters that the options choose; all without options. Raises ValueError."""
    brokers = await admin.brokers()
    if not brokers:
        raise ValueError("no broker is registered: is it up?")
    found = sorted(brokers)
    if cluster is not None:
        clusters = await admin.clusters()
        if cluster not in clusters:
            raise ValueError(f"there is no cluster {cluster}: the clusters are {', '.join(sorted(clusters))}")
        found = [name for name in found if name in clusters[cluster]]
    if broker is not None:
        found = [name for name in found if broker in (name, brokers[name])]
        if not found:
            named = ", ".join(f"{name} ({address})" for name, address in sorted(brokers.items()))
            raise ValueError(f"there is no broker {broker}: the brokers are {named}")
    return found
