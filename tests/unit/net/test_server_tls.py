"""The certificate of a running server: rotations, files that do not fit, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest

from compat.certificates import Authority, Pair
from tests.unit.net import secure
from tests.unit.net.secure import Echo, client_context, close, connect, copy_over, echo, replace, server_tls, until
from wheelmq.net.server import Server
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.tls import ClientAuth, TlsMode
from wheelmq.system.tls_server import ServerTlsOptions
from wheelmq.testing.clock import ManualClock

CHECK_S = 0.01


@pytest.fixture
def live(tmp_path: Path, authority: Authority) -> Pair:
    """The files of a server, which a test replaces."""
    pair = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    replace(authority.issue("first"), pair)
    return pair


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


async def served_name(port: int, authority: Authority) -> str:
    """Return the common name of the certificate that a new connection gets."""
    peer = await connect(port, client_context(authority))
    assert await echo(peer) == b"hello"
    subject = peer[1].get_extra_info("peercert")["subject"]
    await close(peer)
    return str(dict(pair for part in subject for pair in part)["commonName"])


def test_a_rotation_counts_for_new_connections_and_breaks_no_old_one(
    loop: str, authority: Authority, live: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def work() -> None:
        tls = server_tls(live)
        tls.watch(CHECK_S)
        server = Server(Echo(), tls=tls)
        port = await server.listen("127.0.0.1", 0)
        old = await connect(port, client_context(authority))
        assert await served_name(port, authority) == "first"
        for number, name in enumerate(("second", "third"), 1):
            replace(authority.issue(name), live)
            await until(lambda number=number: tls.reloads == number)  # type: ignore[misc]
            assert await served_name(port, authority) == name
            assert server.figures()["tls_reloads"] == number
        assert await echo(old) == b"hello"
        assert old[1].get_extra_info("peercert")["subject"] == ((("commonName", "first"),),)
        await close(old)
        await tls.stop()
        await server.close()

    secure.run(loop, work())
    assert warnings(caplog) == []
    assert sum("new connections use the new TLS certificate of " in one for one in caplog.messages) == 2


def test_half_a_rotation_keeps_the_old_pair_and_warns_once(
    authority: Authority, live: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls, fresh = server_tls(live), authority.issue("fresh")
    before = tls.context
    copy_over(fresh.certificate, live.certificate)
    assert [tls.check() for _ in range(6)] == [False] * 6
    assert (tls.context, tls.certificate.subject, tls.reloads) == (before, "first", 0)
    (line,) = warnings(caplog)
    assert line == (
        "the new TLS certificate is not used, and the previous one stays: the key in "
        f"{live.key} is not that of the certificate in {live.certificate}: name the two files of one pair"
    )
    copy_over(fresh.key, live.key)
    assert tls.check()
    assert (tls.certificate.subject, tls.reloads) == ("fresh", 1)
    assert tls.context is not before


def test_a_rotation_between_two_checks_does_not_warn(
    authority: Authority, live: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """One check sees one new file of two."""
    tls, fresh = server_tls(live), authority.issue("fresh")
    copy_over(fresh.certificate, live.certificate)
    assert not tls.check()
    copy_over(fresh.key, live.key)
    assert tls.check()
    assert warnings(caplog) == []


@pytest.mark.parametrize("what", ["missing", "empty", "garbage", "unreadable"])
def test_bad_files_keep_the_old_pair(
    authority: Authority, live: Pair, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_tls(live)
    fresh = authority.issue("fresh")
    if what == "missing":
        live.key.unlink()
    elif what == "unreadable":
        live.key.unlink()
        live.key.mkdir()
    else:
        live.key.write_bytes(b"" if what == "empty" else os.urandom(300))
    assert [tls.check() for _ in range(4)] == [False] * 4
    assert len(warnings(caplog)) == 1
    assert str(live.key) in warnings(caplog)[0]
    if what == "unreadable":
        live.key.rmdir()
    replace(fresh, live)
    assert tls.check()
    assert tls.certificate.subject == "fresh"


def test_a_symbolic_link_that_points_to_new_files_is_a_rotation(tmp_path: Path, authority: Authority) -> None:
    """Kubernetes rotates a secret in this way: files keep their sizes and may keep their times."""
    pairs = [authority.issue(name) for name in ("aaaa", "bbbb")]
    link = tmp_path / "current"
    for pair in pairs:
        folder = tmp_path / pair.certificate.stem
        folder.mkdir()
        copy_over(pair.certificate, folder / "tls.crt")
        copy_over(pair.key, folder / "tls.key")
        for path in folder.iterdir():
            os.utime(path, ns=(0, 0))
    link.symlink_to(tmp_path / "aaaa")
    tls = server_tls(Pair(link / "tls.crt", link / "tls.key"))
    assert not tls.check()
    fresh = tmp_path / "fresh"
    fresh.symlink_to(tmp_path / "bbbb")
    fresh.replace(link)
    assert tls.check()
    assert tls.certificate.subject == "bbbb"


def test_a_new_authority_of_clients_counts_without_a_restart(
    loop: str, tmp_path: Path, authority: Authority, live: Pair
) -> None:
    other = Authority(tmp_path / "other", "Another authority")
    trusted = tmp_path / "trusted.pem"
    copy_over(authority.file, trusted)

    async def is_accepted(port: int, own: Pair) -> bool:
        try:
            peer = await connect(port, client_context(authority, own))
            assert await echo(peer) == b"hello"
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            return False
        await close(peer)
        return True

    async def work() -> None:
        tls = server_tls(live, client_auth=ClientAuth.REQUIRE, ca_file=trusted)
        server = Server(Echo(), tls=tls)
        port = await server.listen("127.0.0.1", 0)
        ours, theirs = authority.issue("client"), other.issue("client")
        assert [await is_accepted(port, one) for one in (ours, theirs)] == [True, False]
        copy_over(other.file, trusted)
        assert tls.check()
        assert [await is_accepted(port, one) for one in (ours, theirs)] == [False, True]
        await server.close()

    secure.run(loop, work())


def test_the_mode_is_asked_for_each_connection(loop: str, authority: Authority, live: Pair) -> None:
    mode = TlsMode.PERMISSIVE

    async def work() -> None:
        nonlocal mode
        options = ServerTlsOptions(certificate_file=live.certificate, key_file=live.key)
        server = Server(Echo(), tls=ServerTls(options, lambda: mode, clock=ManualClock()))
        port = await server.listen("127.0.0.1", 0)
        plain = await connect(port)
        assert await echo(plain) == b"hello"
        mode = TlsMode.ENFORCING
        late = await connect(port)
        late[1].write(b"hello")
        assert await late[0].read() == b""
        assert await echo(plain) == b"hello"
        assert await served_name(port, authority) == "first"
        for peer in (plain, late):
            await close(peer)
        await server.close()

    secure.run(loop, work())


@pytest.mark.parametrize(
    ("days", "text"),
    [(13.0, "expires in 13.0 days"), (0.5, "expires in 0.5 days"), (-2.0, "expired 2.0 days ago"), (15.0, None)],
)
def test_the_end_is_announced_once_a_day(
    authority: Authority, days: float, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.issue("ending")
    options = ServerTlsOptions(certificate_file=pair.certificate, key_file=pair.key)
    end_ms = options.load().certificate.not_after_ms
    clock = ManualClock(end_ms - int(days * 86_400_000))
    tls = ServerTls(options, lambda: TlsMode.PERMISSIVE, clock=clock)
    for _ in range(3):
        tls.note_expiry()
    assert len(warnings(caplog)) == int(text is not None)
    if text is None:
        return
    assert f"the TLS certificate of ending {text}. Replace {pair.certificate} and {pair.key}" in warnings(caplog)[0]
    clock.advance(25 * 3600 * 1000)
    tls.note_expiry()
    assert len(warnings(caplog)) == 2


def test_a_check_that_fails_does_not_end_the_watch(
    loop: str, authority: Authority, live: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        tls = server_tls(live)
        failures = iter([RuntimeError("unforeseen")])
        changed = tls._changed

        def fail_once() -> object:
            for failure in failures:
                raise failure
            return changed()

        monkeypatch.setattr(tls, "_changed", fail_once)
        tls.watch(CHECK_S)
        replace(authority.issue("second"), live)
        await until(lambda: tls.reloads == 1)
        await tls.stop()

    secure.run(loop, work())
    assert "the check of the TLS certificate failed; the next one is in 0.01 s" in caplog.messages
