"""The files of TLS, and the options of servers and clients: each problem is named with its file and the remedy."""

from __future__ import annotations

import os
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from compat.certificates import Authority, Pair
from wheelmq.system import tls_client
from wheelmq.system.tls import ClientAuth, ServerCheck, TlsError
from wheelmq.system.tls_client import ClientTls, TlsOptions, client_tls, problem_text
from wheelmq.system.tls_server import ServerTlsOptions


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(tmp_path: Path, authority: Authority) -> Pair:
    """A pair whose files a test may break."""
    made = authority.issue("server")
    own = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    own.certificate.write_bytes(made.certificate.read_bytes())
    own.key.write_bytes(made.key.read_bytes())
    return own


def problem_of(pair: Pair, **options: Any) -> str:
    """Return the error of a server with these options."""
    with pytest.raises(TlsError) as caught:
        ServerTlsOptions(certificate_file=pair.certificate, key_file=pair.key, **options).load()
    return str(caught.value)


class TestServer:
    def test_a_good_pair_is_loaded(self, pair: Pair) -> None:
        found = ServerTlsOptions(certificate_file=pair.certificate, key_file=pair.key).load()
        assert found.certificate.subject == "server"
        assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert found.context.verify_mode is ssl.CERT_NONE

    def test_a_missing_file(self, pair: Pair) -> None:
        pair.certificate.unlink()
        assert problem_of(pair) == (
            f"the certificate file {pair.certificate} cannot be read: No such file or directory. Name an existing file "
            "that this user may read"
        )

    def test_a_file_without_a_certificate(self, pair: Pair) -> None:
        pair.certificate.write_bytes(pair.key.read_bytes())
        assert problem_of(pair).startswith(f"the certificate file {pair.certificate} has no certificate in PEM: ")

    def test_a_file_without_a_key(self, pair: Pair) -> None:
        pair.key.write_bytes(pair.certificate.read_bytes())
        assert problem_of(pair).startswith(f"the key file {pair.key} has no private key in PEM: it needs a block")

    def test_a_key_of_another_certificate(self, pair: Pair, authority: Authority) -> None:
        pair.key.write_bytes(authority.issue("other").key.read_bytes())
        assert problem_of(pair) == (
            f"the key in {pair.key} is not that of the certificate in {pair.certificate}: name the two files of one "
            "pair"
        )

    def test_a_broken_key(self, pair: Pair) -> None:
        pair.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        assert problem_of(pair).startswith(f"OpenSSL rejects {pair.certificate} with {pair.key}: ")

    def test_an_encrypted_key(self, pair: Pair, authority: Authority, tmp_path: Path) -> None:
        made = authority.issue("locked", password="open sesame")
        pair.certificate.write_bytes(made.certificate.read_bytes())
        pair.key.write_bytes(made.key.read_bytes())
        assert problem_of(pair).startswith(f"the key file {pair.key} is encrypted: write its password to a file")
        password = tmp_path / "password"
        assert problem_of(pair, key_password_file=password).startswith(f"the password file {password} cannot be read")
        password.write_text("wrong\n")
        text = problem_of(pair, key_password_file=password)
        assert f"the key file {pair.key} cannot be decrypted with the password in {password}" in text
        assert "wrong" not in text
        password.write_text("open sesame\r\n")
        options = ServerTlsOptions(certificate_file=pair.certificate, key_file=pair.key, key_password_file=password)
        assert options.load().certificate.subject == "locked"
        assert password in options.files

    def test_client_certificates_need_an_authority(self, pair: Pair, authority: Authority, tmp_path: Path) -> None:
        assert problem_of(pair, client_auth=ClientAuth.REQUIRE).startswith(
            "tls_client_auth is require, and no authority is known that signs client certificates: name a file"
        )
        bad = tmp_path / "ca.pem"
        bad.write_text("nothing")
        text = problem_of(pair, client_auth=ClientAuth.OPTIONAL, ca_file=bad)
        assert text.startswith(f"the CA file {bad} has no certificate in PEM: ")
        good = ServerTlsOptions(
            certificate_file=pair.certificate, key_file=pair.key, client_auth=ClientAuth.REQUIRE, ca_file=authority.file
        )
        assert good.load().context.verify_mode is ssl.CERT_REQUIRED

    def test_an_unknown_cipher_is_named_in_the_error(self, pair: Pair) -> None:
        assert problem_of(pair, ciphers="NO-SUCH-CIPHER").startswith("OpenSSL knows no cipher in 'NO-SUCH-CIPHER': ")

    def test_a_key_that_openssl_finds_too_short(self, pair: Pair, authority: Authority) -> None:
        made = authority.issue("short", rsa_bits=1024)
        text = problem_of(Pair(made.certificate, made.key))
        assert text == f"OpenSSL rejects {made.certificate} with {made.key}: EE_KEY_TOO_SMALL"


class TestClient:
    def test_a_client_accepts_true_false_and_a_context(self) -> None:
        assert client_tls(None) is None and client_tls(False) is None
        assert isinstance(client_tls(True), ClientTls)
        context = ssl.create_default_context()
        chosen = client_tls(context)
        assert chosen is not None and chosen.context() is context
        with pytest.raises(TypeError, match="must be True, False, an ssl"):
            client_tls("yes")  # type: ignore[arg-type]

    def test_the_default_trusts_the_authorities_of_the_system_and_checks_names(self) -> None:
        chosen = client_tls(True)
        assert chosen is not None
        context = chosen.context()
        assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        expected = ssl.create_default_context()
        assert context.cert_store_stats() == expected.cert_store_stats()

    def test_an_authority_takes_the_place_of_the_system_s(self, authority: Authority) -> None:
        context = ClientTls(TlsOptions(ca_file=str(authority.file))).context()
        assert context.cert_store_stats()["x509"] == 1

    @pytest.mark.parametrize(
        ("verify", "mode", "checks_names"),
        [
            (ServerCheck.FULL, ssl.CERT_REQUIRED, True),
            (ServerCheck.CHAIN, ssl.CERT_REQUIRED, False),
            (ServerCheck.NONE, ssl.CERT_NONE, False),
        ],
    )
    def test_the_checks_of_a_server(self, verify: ServerCheck, mode: ssl.VerifyMode, checks_names: bool) -> None:
        context = ClientTls(TlsOptions(verify=verify)).context()
        assert (context.verify_mode, context.check_hostname) == (mode, checks_names)

    def test_the_name_of_a_server(self) -> None:
        assert ClientTls(TlsOptions()).server_name("10.0.0.7") == "10.0.0.7"
        assert ClientTls(TlsOptions(server_name="mq.example")).server_name("10.0.0.7") == "mq.example"

    def test_a_certificate_needs_a_key(self) -> None:
        with pytest.raises(ValueError, match="give both certificate_file and key_file"):
            TlsOptions(certificate_file="client.pem")

    def test_options_travel_as_text(self) -> None:
        options = TlsOptions(ca_file=Path("/ca.pem"), verify=ServerCheck.CHAIN, certificate_file="c", key_file="k")
        assert TlsOptions.from_json(options.to_json()) == options
        assert pickle.loads(pickle.dumps(options)) == options

    def test_a_context_is_shared_until_a_file_changes(self, pair: Pair, authority: Authority) -> None:
        options = TlsOptions(
            ca_file=str(authority.file), certificate_file=str(pair.certificate), key_file=str(pair.key)
        )
        first = ClientTls(options).context()
        assert ClientTls(options).context() is first
        assert ClientTls(TlsOptions(ca_file=str(authority.file))).context() is not first
        os.utime(pair.key, ns=(1, 1))
        assert ClientTls(options).context() is not first

    def test_a_missing_authority(self, tmp_path: Path) -> None:
        with pytest.raises(TlsError, match=f"the CA file {tmp_path / 'ca.pem'} cannot be read: No such file"):
            ClientTls(TlsOptions(ca_file=str(tmp_path / "ca.pem"))).context()


def test_other_errors_keep_their_texts() -> None:
    assert problem_text(ConnectionRefusedError(111, "Connection refused")) == "[Errno 111] Connection refused"
    error = ssl.SSLError(1, "[SSL: NO_SUCH_REASON] none")
    error.reason = "NO_SUCH_REASON"
    assert problem_text(error) == "TLS failed: NO_SUCH_REASON"
    error.reason = "WRONG_VERSION_NUMBER"
    assert problem_text(error) == f"TLS failed: WRONG_VERSION_NUMBER. {tls_client._REMEDIES['WRONG_VERSION_NUMBER']}"
