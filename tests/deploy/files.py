"""The files of deploy/, parsed, and checks of the `wheelmq` commands in them."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from tests.conftest import IS_CI
from wheelmq.auth.exposure import exposure_problem, metrics_problem
from wheelmq.auth.settings import AuthSettings
from wheelmq.cli import main
from wheelmq.cli.config_options import all_schemas, settings_of
from wheelmq.config.bounds import FAST_PORT_BELOW

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
METRICS_PORT: Final = 5557
BROKER_PORTS: Final = (BROKER_PORT, BROKER_PORT - FAST_PORT_BELOW, BROKER_PORT + 1)
"""The port of a broker, its fast port, and its HA port."""


def documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def compose() -> dict[str, Any]:
    [found] = documents(DEPLOY / "compose.yaml")
    assert isinstance(found, dict)
    return found


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """Return the objects for Kubernetes, each with the name of its file."""
    return [
        (path.name, document)
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in documents(path)
    ]


def units() -> list[Path]:
    return sorted((DEPLOY / "systemd").glob("*.service"))


def unit_values(path: Path, name: str) -> list[str]:
    """Return the values of one setting of a unit."""
    return re.findall(rf"^{name}=(.*)$", path.read_text(), re.MULTILINE)


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """Replace `${NAME:-DEFAULT}` by the default, and `$(NAME)` by the value in `variables`."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)


def parsed(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a `wheelmq` command and its options. An unknown command or option fails the test."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"there is no command {name}"
    return name, command.make_context(name, list(arguments)).params


def settings_in(name: str, options: Mapping[str, Any], config: Path | None) -> Any:
    """Return the settings with which a broker or a name server starts.

    An unknown setting fails the test, and so does one with which the part would not start.
    """
    schema = all_schemas()[0 if name == "broker" else 1]
    chosen: dict[str, tuple[Any, str]] = {"listen_port": (options["port"], "--port")}
    fallbacks: dict[str, Any] = {"kv_config_path": Path("/store/kv.json")}
    if name == "broker":
        fallbacks = {"store_path": Path("/store")}
        advertised = options["advertise"]
        chosen |= {"namesrv": (options["namesrv"], "--namesrv"), "broker_name": (options["name"], "--name")}
        chosen |= {} if advertised is None else advertised.settings()
    settings, reading = settings_of(schema, config, options["pairs"], fallbacks=fallbacks, options=chosen)
    assert reading.notes == []
    if name == "broker":
        assert exposure_problem(name, settings.broker.listen_host, settings.auth, has_users=False) is None
        assert metrics_problem(settings.metrics.prom_host, settings.auth) is None
    else:
        node = settings.nameserver
        auth = AuthSettings(allow_unauthenticated=node.allow_unauthenticated)
        assert exposure_problem(name, node.listen_host, auth, has_users=False) is None
    return settings


def tool(name: str, folders: Iterable[Path] = ()) -> str:
    """Return the path of a checker. Without it the test is skipped, and fails in CI."""
    places = [Path(sys.executable).parent, *folders]
    found = next((str(place / name) for place in places if (place / name).is_file()), None) or shutil.which(name)
    if found is None and not IS_CI:
        pytest.skip(f"{name} is not installed")
    assert found is not None, f"{name} is not installed: in CI nothing may be left out"
    return found
