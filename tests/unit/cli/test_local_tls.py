"""TLS between the parts of `wheelmq up`, and the settings that the command passes to them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compat.certificates import Authority
from wheelmq.broker.schema import BROKER
from wheelmq.cli import main
from wheelmq.cli.exposure import Listener, warnings
from wheelmq.cli.local_tls import broker_pairs, local_problem, local_tls, pairs_of, settings_from
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.config.setting import declared
from wheelmq.config.tls import OutgoingTls, TlsSettings
from wheelmq.nameserver.settings import NAME_SERVER
from wheelmq.system.clock import SystemClock
from wheelmq.system.tls import ClientAuth, ServerCheck, TlsMode
from wheelmq.system.tls_client import TlsOptions

CERTIFIED: dict[str, Any] = {"certificate_file": "c.pem", "key_file": "c.key"}
STRICT: dict[str, Any] = {**CERTIFIED, "mode": TlsMode.ENFORCING}
OWN = TlsOptions(ca_file="c.pem", verify=ServerCheck.CHAIN)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, None),
        (CERTIFIED, None),
        (STRICT, OWN),
        ({**CERTIFIED, "outgoing": OutgoingTls.ALWAYS}, OWN),
        ({**STRICT, "outgoing_ca_file": "ca.pem"}, TlsOptions(ca_file="ca.pem")),
        ({**STRICT, "outgoing_verify": ServerCheck.NONE}, TlsOptions(verify=ServerCheck.NONE)),
        ({"outgoing": OutgoingTls.ALWAYS}, TlsOptions()),
    ],
)
def test_the_parts_trust_their_own_certificate(chosen: dict[str, Any], expected: TlsOptions | None) -> None:
    settings = TlsSettings(**chosen)
    assert local_tls(settings) == expected
    trusts_itself = expected == OWN
    assert broker_pairs(settings) == (["tls_outgoing_ca_file=c.pem", "tls_outgoing_verify=chain"] * trusts_itself)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({}, None),
        (STRICT, None),
        ({**STRICT, "outgoing": OutgoingTls.NEVER}, "Set tls_outgoing to auto"),
        ({**STRICT, "client_auth": ClientAuth.REQUIRE, "ca_file": "ca"}, "name one with tls_outgoing_certificate_file"),
        ({**CERTIFIED, "client_auth": ClientAuth.REQUIRE, "ca_file": "ca"}, None),
        (
            {
                **STRICT,
                "client_auth": ClientAuth.REQUIRE,
                "ca_file": "ca",
                "outgoing_certificate_file": "o.pem",
                "outgoing_key_file": "o.key",
            },
            None,
        ),
    ],
)
def test_parts_that_could_not_reach_each_other(tmp_path: Path, chosen: dict[str, Any], text: str | None) -> None:
    settings = TlsSettings(**chosen)
    found = local_problem(settings)
    assert (found is None) == (text is None)
    if found is None or text is None:
        return
    assert text in found
    stack = Stack(
        StackSettings(home=tmp_path, with_pipeline=False, tls=settings), clock=SystemClock(), tell=lambda text: None
    )
    with pytest.raises(StackFailed, match=re.escape(text)):
        asyncio.run(stack.start())


def test_all_parts_get_the_settings(tmp_path: Path) -> None:
    """A properties file is the broker's alone, and the name server gets its settings of TLS by `--set`."""
    file = tmp_path / "broker.conf"
    file.write_text("tls.server.mode=enforcing\ntls.server.certPath=/c.pem\ntls.server.keyPath=/c.key\n")
    tls = settings_from(file, ("tls_min_version=TLSv1.3",)).tls
    settings = StackSettings(home=tmp_path, config=file, broker_settings=("tls_min_version=TLSv1.3",), tls=tls)
    stack = Stack(settings, clock=SystemClock(), tell=lambda text: None)
    names = " ".join(stack.namesrv.command)
    for pair in ("tls_mode=enforcing", "tls_certificate_file=/c.pem", "tls_key_file=/c.key", "tls_min_version=TLSv1.3"):
        assert f"--set {pair}" in names
    broker = " ".join(stack.broker.command)
    assert broker.endswith(
        "--set tls_outgoing_ca_file=/c.pem --set tls_outgoing_verify=chain --set tls_min_version=TLSv1.3"
    )
    assert stack.pipeline is not None
    command = stack.pipeline.child.command
    chosen = TlsOptions.from_json(command[command.index("--tls-options") + 1])
    assert (chosen.ca_file, chosen.verify, chosen.min_version) == ("/c.pem", "chain", "TLSv1.3")


def test_the_pairs_name_every_setting() -> None:
    """Each setting of the table, with another value than its default."""
    other: dict[type, Any] = {TlsMode: TlsMode.DISABLED, ClientAuth: ClientAuth.OPTIONAL, str: "value"}
    changed = {}
    for one in declared(BROKER.tables).values():
        if one.table == "tls":
            kind = type(one.default)
            changed[one.key] = other.get(kind) or next(value for value in kind if value != one.default)
    settings = TlsSettings(**changed)
    pairs = dict(pair.split("=") for pair in pairs_of(settings))
    assert set(pairs) == set(NAME_SERVER.groups["tls"].values())
    for name, value in pairs.items():
        assert NAME_SERVER.convert(name, value) == changed[NAME_SERVER.fields[name].key]
    assert pairs_of(TlsSettings()) == []


def test_a_bad_certificate_fails_the_start(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "authority").issue()
    words = ["--set", f"tls_certificate_file={pair.certificate}", "--set", "tls_key_file=/no/such.key"]
    result = CliRunner().invoke(main, ["up", "--home", str(tmp_path), "--namesrv-port=0", "--broker-port=0", *words])
    assert result.exit_code == 1
    assert (
        "Error: the key file /no/such.key cannot be read: No such file or directory. Name an existing" in result.output
    )


@pytest.mark.parametrize(
    ("modes", "needs_certificate", "text"),
    [
        ((TlsMode.DISABLED, TlsMode.ENFORCING), False, "There is no TLS and no password: allow only trusted machines"),
        (
            (TlsMode.PERMISSIVE, TlsMode.ENFORCING),
            True,
            "Connections without TLS are accepted",
        ),
        ((TlsMode.ENFORCING, TlsMode.ENFORCING), False, "There is no password, and no client needs a certificate"),
        ((TlsMode.ENFORCING, TlsMode.ENFORCING), True, None),
    ],
)
def test_a_warning_about_other_machines_names_the_weakest_port(
    modes: tuple[TlsMode, TlsMode], needs_certificate: bool, text: str | None
) -> None:
    names, broker = (
        Listener(name, "0.0.0.0", 1, mode, needs_certificate)
        for name, mode in zip(("name server", "broker"), modes, strict=True)
    )
    found = warnings(names, broker)
    assert found == [] if text is None else text in found[0]
