"""The certificate that the servers of a process present, reloaded when its files change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Final

from wheelmq.formats.certificate import Certificate
from wheelmq.system.clock import Clock
from wheelmq.system.tls import FileState, TlsError, TlsMode, file_states
from wheelmq.system.tls_server import LoadedCertificate, ServerTlsOptions

log = logging.getLogger(__name__)

RELOAD_S: Final = 5.0
"""Interval at which the files are checked."""
ATTEMPTS_BEFORE_WARNING: Final = 2
"""A rotation replaces several files. The first check may see a part of them."""
EXPIRY_WARNING_DAYS: Final = 14.0
WARN_EVERY_S: Final = 24 * 3600.0


class ServerTls:
    """A certificate in use, and the mode that decides which connections may do without it.

    `mode` is asked for each connection, because it can change while the server runs. Raises TlsError.
    """

    def __init__(self, options: ServerTlsOptions, mode: Callable[[], TlsMode], *, clock: Clock) -> None:
        self.options = options
        self._mode = mode
        self._clock = clock
        self._loaded = options.load()
        self._rejected: tuple[FileState, ...] | None = None
        """The states of files that do not fit each other."""
        self._attempts = 0
        self._next_warning_s = 0.0
        self.reloads = 0
        self._task: asyncio.Task[None] | None = None
        self.note_expiry()

    @property
    def mode(self) -> TlsMode:
        return self._mode()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._loaded.context

    @property
    def certificate(self) -> Certificate:
        return self._loaded.certificate

    def watch(self, interval_s: float) -> None:
        """Start to check the files regularly, until `stop`."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(interval_s))

    async def stop(self) -> None:
        """Stop to check the files."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                found = await asyncio.to_thread(self._changed)  # a disk may hang
                if found is not None:
                    self._use(found)
                self.note_expiry()
            except Exception:
                log.exception("the check of the TLS certificate failed; the next one is in %g s", interval_s)

    def check(self) -> bool:
        """Load the files if they have changed. Returns whether there is a new certificate."""
        found = self._changed()
        if found is not None:
            self._use(found)
        return found is not None

    def _changed(self) -> LoadedCertificate | None:
        """Return the certificate of changed files, or None. Changes nothing that connections use."""
        states = file_states(self.options.files)
        if states == self._loaded.states:
            self._rejected = None
            return None
        if states != self._rejected:
            self._rejected, self._attempts = states, 0
        self._attempts += 1
        if self._attempts > ATTEMPTS_BEFORE_WARNING:
            return None
        try:
            return self.options.load()
        except TlsError as error:
            if self._attempts == ATTEMPTS_BEFORE_WARNING:
                log.warning("the new TLS certificate is not used, and the previous one stays: %s", error)
            return None

    def _use(self, found: LoadedCertificate) -> None:
        self._loaded = found
        self.reloads += 1
        self._next_warning_s = 0.0
        days = found.certificate.days_left(self._clock.now_ms())
        log.info("new connections use the new TLS certificate of %s, valid for %.0f days", self._name(), days)

    def note_expiry(self) -> None:
        """Log once a day that the certificate expires soon."""
        days = self.certificate.days_left(self._clock.now_ms())
        now_s = self._clock.monotonic()
        if days >= EXPIRY_WARNING_DAYS or now_s < self._next_warning_s:
            return
        self._next_warning_s = now_s + WARN_EVERY_S
        when = f"expires in {days:.1f} days" if days > 0 else f"expired {-days:.1f} days ago"
        log.warning(
            "the TLS certificate of %s %s. Replace %s and %s; the new files count without a restart",
            self._name(),
            when,
            self.options.certificate_file,
            self.options.key_file,
        )

    def _name(self) -> str:
        return self.certificate.subject or ", ".join(self.certificate.names) or "no name"


def open_server_tls(options: ServerTlsOptions | None, mode: Callable[[], TlsMode], *, clock: Clock) -> ServerTls | None:
    """Load the certificate, and watch its files until `stop`. Returns None without a certificate. Raises TlsError."""
    if options is None:
        return None
    tls = ServerTls(options, mode, clock=clock)
    tls.watch(RELOAD_S)
    return tls
