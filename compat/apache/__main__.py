"""Run Apache RocketMQ in the foreground: `python -m compat.apache --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from compat.apache.apache import ApacheBroker, ApacheNameServer


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    with ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apache-rocketmq-")))
        namesrv = stack.enter_context(ApacheNameServer(home, port=options.namesrv_port))
        broker = stack.enter_context(
            ApacheBroker(
                home,
                namesrv.address,
                port=options.broker_port,
                config=dict(options.set),
                heap=options.heap,
            )
        )
        addresses = {"namesrv": namesrv.address, "broker": broker.address, "store_dir": str(broker.store_dir)}
        print(json.dumps(addresses), flush=True)
        try:
            return broker.wait()
        finally:
            if options.home and broker.is_running:
                broker.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compat.apache", description=__doc__)
    parser.add_argument("--home", type=Path, help="folder for store, logs and settings (a temporary one)")
    parser.add_argument("--namesrv-port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--broker-port", type=int, default=0, help="also takes this port - 2 and + 1")
    parser.add_argument("--heap", default="512m", help="the broker's heap (512m)")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="a line of broker.conf"
    )
    return parser


def setting(text: str) -> tuple[str, str]:
    """Return a text like `flushDiskType=SYNC_FLUSH` as a pair."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"not KEY=VALUE: {text}")
    return key, value


def _leave(*_: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
