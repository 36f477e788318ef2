"""`wheelmq broker`: a broker alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wheelmq.cli.part import CannotStart, home_option, run_part, say, supervised_options

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings

BLOCK_SECONDS_MIN: Final = 60
"""Blocks have some million numbers, and none is given again while the log names it: of 60 s these are two years."""

flush_option = click.option(
    "--flush",
    type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH"], case_sensitive=False),
    default="ASYNC_FLUSH",
    show_default=True,
    help="Whether a send is answered before or after it is on disk.",
)
set_option = click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other setting of the broker, by its name; those of the timer by Apache's too.",
)


@click.command(name="broker", short_help="Run a broker alone.")
@home_option
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="Store folder, if not HOME/store.")
@click.option("--port", type=click.IntRange(0, 65535), default=10911, show_default=True, help="0 picks a free one.")
@click.option("--namesrv", default="", help="Name servers to register at: HOST:PORT;HOST:PORT.")
@click.option("--name", default="broker-a", show_default=True, help="The broker's name.")
@flush_option
@set_option
@supervised_options[0]
@supervised_options[1]
def command(
    home: Path,
    store: Path | None,
    port: int,
    namesrv: str,
    name: str,
    flush: str,
    pairs: tuple[str, ...],
    as_json: bool,
    ends_with_stdin: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It needs no pipeline to take, keep and deliver what is due soon; what is due later than a few seconds is indexed
    and staged by `wheelmq pipeline`.
    """

    async def life(stop: asyncio.Event) -> int:
        from wheelmq.broker.app import BrokerApp

        chosen = {
            "store_path": str(store or home / "store"),
            "listen_port": port,
            "namesrv": [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()],
            "broker_name": name,
            "flush_mode": flush.upper(),
        }
        app = BrokerApp(broker_settings({**chosen, **parse_pairs(pairs)}))
        await app.start()
        address = f"{app.settings.broker_ip}:{app.settings.listen_port}"
        text = f"Broker {app.settings.broker_name} listens on {address}; its store is {app.settings.store_path}."
        say(as_json, "listening", text, address=address)
        stopping = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(app.stopped.wait())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        failure = app.broker.failure if app.broker is not None else None
        await app.stop()
        if failure is not None:
            say(as_json, "failed", f"Error: {failure}", why=f"the disk did not keep its word: {failure}")
        return 0 if failure is None else 1

    port_option = "--broker-port" if ends_with_stdin else "--port"  # `wheelmq up` calls it so
    code = run_part(life, port=port, port_option=port_option, as_json=as_json, ends_with_stdin=ends_with_stdin)
    sys.exit(code)


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises CannotStart."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise CannotStart(f"--set {pair}: write NAME=VALUE, as in --set timer_max_delay_seconds=604800")
        found[name.strip()] = value.strip()
    return found


def broker_settings(chosen: dict[str, Any]) -> BrokerSettings:
    """The settings; numbers and booleans may be texts. Raises CannotStart."""
    import msgspec

    from wheelmq.broker import timer_settings
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.delay.levels import parse_levels
    from wheelmq.store.expiry import delete_hours

    try:
        chosen = timer_settings.by_our_names(chosen)
    except ValueError as error:
        raise CannotStart(str(error)) from None
    names = sorted(BrokerSettings.__struct_fields__)
    for name in chosen:
        if name not in names:
            raise CannotStart(f"the broker has no setting {name!r}; it has: {', '.join(names)}")
    store = Path(chosen.pop("store_path"))
    try:
        checked = msgspec.convert({**chosen, "store_path": ""}, BrokerSettings, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise CannotStart(f"a setting of the broker does not fit: {error}") from None
    try:
        parse_levels(checked.message_delay_level)
        delete_hours(checked.delete_when)
        delete_hours(checked.timer_check_metrics_when, "timer_check_metrics_when")
        _check_block_length(checked.block_length_seconds)
    except ValueError as error:
        raise CannotStart(f"a setting of the broker does not fit: {error}") from None
    return msgspec.structs.replace(checked, store_path=store)


def _check_block_length(seconds: int) -> None:
    """Raises ValueError. Tests, which ask no command line, have shorter ones."""
    if seconds < BLOCK_SECONDS_MIN:
        raise ValueError(
            f"block_length_seconds is {seconds}: blocks shorter than {BLOCK_SECONDS_MIN} s run out of numbers; set "
            f"{BLOCK_SECONDS_MIN} or more (3600 is usual; blocks that are there keep their length)"
        )


def _path(kind: type, value: Any) -> Any:
    return kind(value)
