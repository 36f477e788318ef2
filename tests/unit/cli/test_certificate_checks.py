"""The doctor's checks of certificates, on real files and against a real broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compat.certificates import Authority, Pair
from tests.unit.net.secure import server_tls
from wheelmq.cli import main
from wheelmq.cli.certificate_checks import served_certificate
from wheelmq.cli.check import CheckStatus
from wheelmq.cli.ports import free_port
from wheelmq.net.listening import listen, stream_factory

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def doctor(*pairs: str, file: Path | None = None, port: int | None = None) -> dict[str, dict[str, str]]:
    """Return the checks for TLS of the command, by name."""
    words = ["doctor", "--json", "--broker-port", str(port or free_port())]
    words += [] if file is None else ["-c", str(file)]
    result = CliRunner().invoke(main, [*words, *(word for pair in pairs for word in ("--set", pair))])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return {one["name"]: one for one in found if one["name"].startswith(("tls", "settings"))}


def pairs_of(pair: Pair) -> list[str]:
    return [f"tls_certificate_file={pair.certificate}", f"tls_key_file={pair.key}"]


def test_without_a_certificate_nothing_is_wrong() -> None:
    found = doctor()
    assert set(found) == {"tls"}
    expected = ("ok", "no certificate is set, so all connections are plain")
    assert (found["tls"]["status"], found["tls"]["detail"]) == expected


def test_a_good_certificate(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("good", days=90)
    pair.key.chmod(0o600)
    file = tmp_path / "wheelmq.toml"
    file.write_text(f'[tls]\ncertificate_file = "{pair.certificate}"\nkey_file = "{pair.key}"\n')
    found = doctor(file=file)
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(
        ("tls", "tls names", "tls key", "tls broker"), "ok"
    )
    assert found["tls"]["detail"] == "the certificate good is valid for 90.0 days, and its key fits"
    assert found["tls names"]["detail"] == "localhost, 127.0.0.1, ::1; routes have 127.0.0.1"


@pytest.mark.parametrize(
    ("days", "status", "text"),
    [
        (13.0, "warn", "is valid for 13.0 days"),
        (0.25, "warn", "is valid for 0.2 days"),
        (-3.0, "fail", "expired 3.0 days ago"),
    ],
)
def test_an_ending_certificate(authority: Authority, days: float, status: str, text: str) -> None:
    found = doctor(*pairs_of(authority.issue("ending", days=days)))["tls"]
    assert (found["status"], text in found["detail"]) == (status, True), found
    assert found["advice"].startswith("replace the files of the certificate and of its key: the parts load them ")


def test_an_address_that_is_not_among_the_names(authority: Authority) -> None:
    pair = authority.issue("elsewhere", names=("mq.example", "10.0.0.7"))
    found = doctor(*pairs_of(pair), "broker_ip=10.0.0.8")["tls names"]
    assert (found["status"], found["detail"]) == (
        "warn",
        "mq.example, 10.0.0.7; 10.0.0.8, the address in routes, is not among them",
    )
    assert "subjectAltName" in found["advice"]
    assert doctor(*pairs_of(pair), "broker_ip=10.0.0.7")["tls names"]["status"] == "ok"
    assert doctor(*pairs_of(authority.issue("nameless", names=())))["tls names"]["detail"].startswith("none; ")


def test_a_key_that_others_can_read(authority: Authority) -> None:
    pair = authority.issue("open")
    pair.key.chmod(0o644)
    found = doctor(*pairs_of(pair))["tls key"]
    assert (found["status"], found["detail"]) == ("warn", f"others can read {pair.key} (644)")
    assert found["advice"] == f"`chmod 600 {pair.key}`"


def test_files_that_do_not_fit(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("one"), authority.issue("two")
    found = doctor(*pairs_of(Pair(pair.certificate, other.key)))
    assert set(found) == {"tls"} and found["tls"]["status"] == "fail"
    assert "is not that of the certificate in" in found["tls"]["detail"]
    missing = tmp_path / "missing.pem"
    found = doctor(*pairs_of(Pair(missing, pair.key)))
    assert f"{missing} cannot be read: No such file or directory" in found["tls"]["detail"]
    found = doctor("tls_outgoing=always", f"tls_outgoing_ca_file={missing}")
    assert found["tls"]["status"] == "fail" and str(missing) in found["tls"]["detail"]


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    found = doctor("tls_mode=enforcing")
    assert found["settings"]["status"] == "fail"
    assert "tls_mode is enforcing, and there is no certificate" in found["settings"]["detail"]


class TestServed:
    """The certificate that a server presents, in comparison with the file."""

    def play(self, pair: Pair | None, certificate: Any) -> list[Any]:
        """Run a server with `pair`, and return the last check for `certificate`."""
        from wheelmq.cli.certificate_checks import served_check

        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def run() -> list[Any]:
            tls = None if pair is None else server_tls(pair)
            listener = await listen(stream_factory(nothing), "127.0.0.1", 0, tls=tls)
            try:
                found = await asyncio.to_thread(served_check, certificate, listener.port)
                der = await asyncio.to_thread(served_certificate, listener.port)
                return [found.status, found.detail.replace(str(listener.port), "PORT"), der]
            finally:
                listener.close()

        return asyncio.run(run())

    def test_the_same_certificate(self, authority: Authority) -> None:
        pair = authority.issue("same")
        certificate = server_tls(pair).certificate
        expected = [OK, "the broker on port PORT presents this certificate", certificate.der]
        assert self.play(pair, certificate) == expected

    def test_a_broker_with_an_older_certificate_is_a_warning(self, authority: Authority) -> None:
        old, new = authority.issue("old"), server_tls(authority.issue("new")).certificate
        status, detail, der = self.play(old, new)
        assert (status, detail) == (WARN, "the broker on port PORT presents another certificate")
        assert der == server_tls(old).certificate.der

    def test_a_server_without_tls(self, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wheelmq.cli.certificate_checks.CONNECT_S", 0.2)
        certificate = server_tls(authority.issue("unused")).certificate
        assert self.play(None, certificate) == [WARN, "the process on port PORT accepts no TLS", None]

    def test_a_port_without_a_server_is_no_problem(self, authority: Authority) -> None:
        certificate = server_tls(authority.issue("unused")).certificate
        from wheelmq.cli.certificate_checks import served_check

        assert served_check(certificate, free_port()).status is OK
