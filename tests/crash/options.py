"""Options that the programs of kills and losses have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")


def add_seed_and_home(parser: argparse.ArgumentParser, gives: str, kept: str = "stores and logs") -> None:
    """Add --seed, which gives what `gives` names, and --home for what `kept` names."""
    parser.add_argument("--seed", type=int, help=f"gives the {gives} of the run that printed it")
    parser.add_argument("--home", type=Path, help=f"where to keep {kept}; a scratch folder if not named")


def add_limit(parser: argparse.ArgumentParser, seconds_max: float) -> None:
    """Add the time after which the run ends."""
    parser.add_argument("--seconds-max", type=float, default=seconds_max)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the file of the figures."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def add_flush(parser: argparse.ArgumentParser, usual: str) -> None:
    """Add the flush mode of the brokers."""
    parser.add_argument("--flush", choices=FLUSHES, default=usual)
