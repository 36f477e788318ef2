"""The options for TLS: every command that connects to servers, against servers that accept only TLS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from compat.certificates import Authority, Pair
from tests.unit.client.test_tls import strict
from wheelmq.cli import main
from wheelmq.cli.tls_options import options_of
from wheelmq.system.tls import ServerCheck
from wheelmq.system.tls_client import TlsOptions


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


async def run(*words: str, **variables: str) -> tuple[int, str, str]:
    """Run a command. Returns its exit code, its output and its errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEELMQ_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wheelmq", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment | variables,
    )
    out, problems = await process.communicate()
    return process.returncode or 0, out.decode(), problems.decode()


def test_each_command_connects_with_tls(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def work() -> None:
        async with strict(tmp_path, authority, pair) as names:
            tls = ["--namesrv", names, "--tls-ca", str(authority.file)]
            code, out, problems = await run("send", "T", "hello", "--delay", "1h", "--json", *tls)
            assert code == 0, problems
            sent = json.loads(out)
            assert sent["due_is_exact"]  # another connection asked the broker
            code, out, problems = await run("timers", "--json", *tls)
            assert json.loads(out)[0]["unique_key"] == sent["unique_key"], problems
            code, out, problems = await run("timer-counts", *tls)
            assert code == 0 and " 1" in out, problems
            code, out, problems = await run("timers", "--topic", "T", "--key", sent["unique_key"], *tls)
            assert code == 0, problems
            code, out, problems = await run("cancel", "T", "--key", sent["unique_key"], *tls)
            assert (code, out) == (0, "Cancelled: it will not be delivered.\n"), problems
            assert (await run("send", "T", "now", *tls))[0] == 0
            code, out, problems = await run("consume", "T", "--group", "g", "--count", "1", "--json", *tls)
            assert json.loads(out)["body"] == "now", problems

    asyncio.run(work())


def test_variables_take_the_place_of_options(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def work() -> None:
        async with strict(tmp_path, authority, pair) as names:
            found = [
                (await run("send", "T", "x", WHEELMQ_NAMESRV=names, **variables))[0]
                for variables in (
                    {"WHEELMQ_TLS_CA": str(authority.file)},
                    {"WHEELMQ_USE_TLS": "1", "WHEELMQ_TLS_VERIFY": "none"},
                    {"WHEELMQ_USE_TLS": "0", "WHEELMQ_TLS_VERIFY": "none"},
                    {},
                )
            ]
            assert found == [0, 0, 1, 1]

    asyncio.run(work())


def test_errors_name_the_option(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def work() -> None:
        async with strict(tmp_path, authority, pair) as names:
            for words, text in (
                ((), "A server that accepts only TLS does this too: try --tls."),
                (("--tls",), "Give the file of its authority (ca_file, --tls-ca)"),
                (("--tls-ca", str(authority.file), "--tls-name", "mq.example"), "give one (server_name, --tls-name)"),
                (("--tls-ca", "/no/such/file"), "the CA file /no/such/file cannot be read: No such file or directory"),
            ):
                code, _, problems = await run("send", "T", "x", "--namesrv", names, *words)
                assert code == 1 and text in problems, problems

    asyncio.run(work())


def test_a_certificate_without_a_key_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["send", "T", "x", "--tls-certificate", "c.pem"])
    assert result.exit_code == 2
    assert "give both --tls-certificate and --tls-key" in result.output


def test_a_tls_option_turns_tls_on_unless_no_tls_is_given() -> None:
    assert options_of(None, {"ca_file": None}) is None
    assert options_of(False, {"ca_file": "ca.pem"}) is None
    assert options_of(True, {"ca_file": None}) == TlsOptions()
    assert options_of(None, {"verify": "none"}) == TlsOptions(verify=ServerCheck.NONE)
