"""`wheelmq admin`: the common commands of Apache's mqadmin, by their names and options."""

from __future__ import annotations

import click

from wheelmq.cli import admin_brokers, admin_groups, admin_messages, admin_topics


@click.group(name="admin", short_help="Administer brokers, with mqadmin's commands.")
def command() -> None:
    """Administer WheelMQ and Apache RocketMQ with the common commands of mqadmin, without a JVM.

    The commands have mqadmin's names and options. Their output differs: a table, or with --json an array of objects.
    The variable NAMESRV_ADDR names the name servers, as for mqadmin.
    """


for module in (admin_brokers, admin_topics, admin_groups, admin_messages):
    for one in module.COMMANDS:
        command.add_command(one)
