"""The password of a key, and the key itself, leave a server neither by an answer nor by a log line."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from compat.certificates import Authority
from tests.unit.broker.test_tls import LIMIT_S, broker, files_of, name_server, run
from tests.unit.net.secure import until
from wheelmq.broker.metric_families import Families
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.tls import TlsError, TlsMode
from wheelmq.system.tls_client import TlsOptions, client_tls

PASSWORD = "open-sesame-7391"
WRONG = "close-sesame-1937"


class Locked:
    """A pair whose key is encrypted, and the settings of a server that uses it in both directions."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.pair = self.authority.issue("locked", password=PASSWORD)
        self.password_file = folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.settings: dict[str, Any] = {
            **files_of(self.pair),
            "tls_key_password_file": str(self.password_file),
            "tls_outgoing_ca_file": str(self.authority.file),
            "tls_outgoing_certificate_file": str(self.pair.certificate),
            "tls_outgoing_key_file": str(self.pair.key),
            "tls_outgoing_key_password_file": str(self.password_file),
        }

    @property
    def secrets(self) -> list[bytes]:
        """Both passwords, and each line of the key's file that is not its frame."""
        lines = self.pair.key.read_bytes().splitlines()
        return [PASSWORD.encode(), WRONG.encode(), *(line for line in lines if not line.startswith(b"-----"))]

    def found_in(self, data: bytes) -> list[bytes]:
        return [secret for secret in self.secrets if secret in data]


@pytest.fixture
def locked(tmp_path: Path) -> Locked:
    return Locked(tmp_path)


async def all_answers(port: int, authority: Authority) -> dict[int, bytes]:
    """Send each request without fields, and return the bytes of the answers by code."""
    tls = client_tls(TlsOptions(ca_file=str(authority.file)))
    found = {}
    for code in RequestCode:
        caller = RpcClient(f"127.0.0.1:{port}", tls=tls)
        try:
            answer = await caller.call(Command(code=code), 1.0)
        except CallError:
            continue  # this request has no answer
        finally:
            await caller.close()
        found[int(code)] = repr((answer.remark, answer.ext)).encode() + bytes(answer.body)
    return found


def test_no_answer_log_line_or_metric_of_a_broker_has_a_secret(
    tmp_path: Path, locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with name_server(tmp_path, tls_mode=TlsMode.ENFORCING, **locked.settings) as names:
            chosen = {**locked.settings, "tls_mode": TlsMode.ENFORCING, "namesrv": (f"127.0.0.1:{names.port}",)}
            async with broker(tmp_path / "store", **chosen) as app:
                assert app.registration is not None and app.broker is not None
                await app.registration.registered.wait()
                families = list(Families(app.broker.parts.metric_sources).all())
                answers = await all_answers(app.settings.broker.listen_port, locked.authority)
                theirs = await all_answers(names.port, locked.authority)
        config = answers[RequestCode.GET_BROKER_CONFIG]
        key_line = f"tls.server.keyPath={locked.pair.key}\n".encode()  # the name of the file is no secret
        assert key_line in config and key_line in theirs[RequestCode.GET_NAMESRV_CONFIG]
        assert len(answers) > 50 and len(theirs) > 50
        for answer in (*answers.values(), *theirs.values(), repr(families).encode()):
            assert locked.found_in(answer) == []

    with caplog.at_level(logging.DEBUG):
        run(work())
    assert locked.found_in(caplog.text.encode()) == []


def test_a_wrong_password_is_not_printed(tmp_path: Path, locked: Locked, caplog: pytest.LogCaptureFixture) -> None:
    locked.password_file.write_text(WRONG)

    async def work() -> None:
        with pytest.raises(TlsError, match=r"cannot be decrypted with the password in .*: check") as caught:
            async with broker(tmp_path / "store", **locked.settings):
                pass
        assert locked.found_in(str(caught.value).encode()) == []
        assert caught.value.__suppress_context__

    with caplog.at_level(logging.DEBUG):
        run(work())
    assert locked.found_in(caplog.text.encode()) == []


def test_a_rotation_to_a_wrong_password_is_logged_without_it(
    tmp_path: Path, locked: Locked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheelmq.net.server_tls.RELOAD_S", 0.01)

    async def work() -> None:
        async with broker(tmp_path / "store", **locked.settings):
            locked.password_file.write_text(WRONG)
            async with asyncio.timeout(LIMIT_S):
                await until(lambda: "check the password" in caplog.text)

    with caplog.at_level(logging.DEBUG):
        run(work())
    assert locked.found_in(caplog.text.encode()) == []
