"""`wheelmq admin`: brokers, their figures, their settings, and whether they accept sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from wheelmq.cli.admin_options import AskAdmin, broker_option, chosen_brokers, cluster_option, with_admin
from wheelmq.cli.tables import counted, json_option, print_structs, print_table

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin


class BrokerRow(msgspec.Struct):
    """A row of `wheelmq admin clusterList`."""

    cluster: str
    broker: str
    broker_id: int
    """0 for a master."""
    address: str
    version: str | None
    """The version that a master reports; null for a slave, and for a master that does not answer."""


class ValueRow(msgspec.Struct):
    """A row of `wheelmq admin brokerStatus` and `wheelmq admin getBrokerConfig`."""

    broker: str
    name: str
    value: str


@click.command(name="clusterList")
@json_option
@with_admin
def cluster_list(as_json: bool, ask: AskAdmin[list[BrokerRow]]) -> None:
    """List the brokers of all clusters, masters and slaves."""
    rows = ask(_brokers)
    if as_json:
        print_structs(rows)
        return
    cells = [(row.cluster, row.broker, str(row.broker_id), row.address, row.version or "") for row in rows]
    print_table(counted(len(rows), "broker"), ("cluster", "broker", "id", "address", "version"), cells)


async def _brokers(admin: Admin) -> list[BrokerRow]:
    info = await admin.cluster_info()
    versions = {name: await _version(admin, name) for name in sorted(await admin.brokers())}
    return [
        BrokerRow(data.cluster, name, broker_id, address, versions.get(name) if broker_id == 0 else None)
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]


async def _version(admin: Admin, broker: str) -> str | None:
    from wheelmq.net.errors import CallError, Refused

    try:
        return (await admin.runtime_info(broker)).get("brokerVersionDesc")
    except (CallError, Refused):
        return None


@click.command(name="brokerStatus")
@broker_option
@cluster_option
@json_option
@with_admin
def broker_status(broker: str | None, cluster: str | None, as_json: bool, ask: AskAdmin[list[ValueRow]]) -> None:
    """Show the figures of brokers, by Apache's names."""

    async def work(admin: Admin) -> list[ValueRow]:
        chosen = await chosen_brokers(admin, broker, cluster)
        return _value_rows({name: await admin.runtime_info(name) for name in chosen})

    _print_values(ask(work), as_json=as_json)


@click.command(name="getBrokerConfig")
@broker_option
@cluster_option
@json_option
@with_admin
def get_broker_config(broker: str | None, cluster: str | None, as_json: bool, ask: AskAdmin[list[ValueRow]]) -> None:
    """Show the settings of brokers, by Apache's names."""

    async def work(admin: Admin) -> list[ValueRow]:
        chosen = await chosen_brokers(admin, broker, cluster)
        return _value_rows({name: await admin.broker_config(name) for name in chosen})

    _print_values(ask(work), as_json=as_json)


@click.command(name="updateBrokerConfig")
@broker_option
@cluster_option
@click.option("-k", "--name", "name", required=True, help="The setting, by Apache's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
@with_admin
def update_broker_config(
    broker: str | None, cluster: str | None, name: str, value: str, ask: AskAdmin[list[str]]
) -> None:
    """Change a setting of brokers while they run."""

    async def work(admin: Admin) -> list[str]:
        chosen = await chosen_brokers(admin, broker, cluster)
        for one in chosen:
            await admin.update_broker_config(one, {name: value})
        return chosen

    if broker is None and cluster is None:
        raise click.UsageError("name a broker with -b, or the brokers of a cluster with -c")
    click.echo(f"Changed {name} to {value} at {', '.join(ask(work))}.")


def _write_perm(name: str, *, writable: bool) -> click.Command:
    @click.command(name=name)
    @click.option("-b", "--broker", "--brokerName", "broker", required=True, help="The name of the broker.")
    @with_admin
    def change(broker: str, ask: AskAdmin[int]) -> None:
        async def work(admin: Admin) -> int:
            await chosen_brokers(admin, broker)
            return await admin.set_writable(broker, writable=writable)

        done = "accepts sends again" if writable else "gets no more sends"
        count = ask(work)
        were = "was" if count == 1 else "were"
        click.echo(f"{broker} {done}: {counted(count, 'topic')} {were} changed at the name servers.")

    change.help = (
        "Allow sends to a broker again."
        if writable
        else "Stop sends to a broker: routes no longer allow to write to it."
    )
    return change


def _value_rows(by_broker: dict[str, dict[str, str]]) -> list[ValueRow]:
    return [
        ValueRow(broker, name, value) for broker, table in by_broker.items() for name, value in sorted(table.items())
    ]


def _print_values(rows: list[ValueRow], *, as_json: bool) -> None:
    if as_json:
        print_structs(rows)
        return
    brokers = list(dict.fromkeys(row.broker for row in rows))
    columns = ("broker", "name", "value")
    print_table(", ".join(brokers), columns, [(row.broker, row.name, row.value) for row in rows], may_go=("broker",))


COMMANDS: Final = (
    cluster_list,
    broker_status,
    get_broker_config,
    update_broker_config,
    _write_perm("wipeWritePerm", writable=False),
    _write_perm("addWritePerm", writable=True),
)
