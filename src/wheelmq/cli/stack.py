"""Start, watch and stop name server, broker and pipeline, for `wheelmq up` and `wheelmq demo`.

Each part is a process; this one serves the dashboard. The state of the pipeline comes from the broker too, because only
a request for a plan proves that a pipeline turns.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wheelmq.auth.inner_users import new_inner_key
from wheelmq.cli import exposure, stores
from wheelmq.cli.dashboard_access import UserRequests, asks, login_notes
from wheelmq.cli.disk_use import disk_problem
from wheelmq.cli.exposure import Listener
from wheelmq.cli.local_tls import broker_pairs, local_problem, local_tls, pairs_of, settings_from
from wheelmq.cli.log_tail import tail_text
from wheelmq.cli.namesrv_auth import namesrv_auth_pairs
from wheelmq.cli.network import ExposedPort, open_ports
from wheelmq.cli.part import CannotStart
from wheelmq.cli.ports import HOST, free_port, is_free, taken_text
from wheelmq.client.connections import Connections
from wheelmq.client.routes import RouteCache
from wheelmq.config.sources import is_toml
from wheelmq.config.tls import TlsSettings
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.sessions import Sessions
from wheelmq.formats.hosts import is_loopback
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.managed_process import Event, ManagedProcess
from wheelmq.net.server_tls import ServerTls, open_server_tls
from wheelmq.pipeline.supervisor import PipelineState, PipelineSupervisor
from wheelmq.system.clock import Clock
from wheelmq.system.credentials import variables_of
from wheelmq.system.tls import ClientAuth, TlsError, TlsMode
from wheelmq.system.tls_client import client_tls

if TYPE_CHECKING:
    from wheelmq.dashboard.server import Dashboard

LOOK_S: Final = 0.1
PATIENCE_S: Final = 10.0
"""A start reports what it waits for after this time, then after twice the time, and so on."""
READS: Final = "after a crash it reads its whole log"
COMPILES: Final = "the first start on a machine compiles kernels, for a minute or more; after a crash it reads its log"
BROKER_ANSWER_S: Final = 1.0
METRICS_ANSWER_S: Final = 8.0
"""Time for the metrics of many topics. By default, Prometheus waits for 10 s."""
BROKER_STOP_DEADLINE_S: Final = 30.0
NAMESRV_STOP_DEADLINE_S: Final = 10.0


class StackFailed(Exception):
    """A part cannot run. The text names the part, the reason and its log."""


@dataclass(frozen=True)
class StackSettings:
    """The choices of the user. Port 0 picks a free port."""

    home: Path
    namesrv_port: int = 0
    broker_port: int = 0
    dashboard_port: int | None = 0
    """None for no dashboard."""
    flush: str | None = None
    config: Path | None = None
    """A file of settings for the broker, and for the name server if it is TOML. The ports above override its ports."""
    with_pipeline: bool = True
    master: str | None = None
    broker_settings: tuple[str, ...] = ()
    namesrv_host: str | None = None
    """The address that the name server listens on; None for the address in its settings."""
    hooks: tuple[str, ...] = ()
    advertise: str | None = None
    """The address of the broker in routes; None for the one that the broker chooses."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """The settings of TLS for all parts, from the file, the environment and `broker_settings`."""


class Stack:
    """The three parts. It calls `tell` with each event that the user should know."""

    def __init__(self, settings: StackSettings, *, clock: Clock, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self._tell = tell
        self._clock = clock
        self.home = settings.home.resolve()
        self.logs = self.home / "logs"
        namesrv_port = settings.namesrv_port or free_port(but=(settings.broker_port,))
        self.namesrv_address = f"{HOST}:{namesrv_port}"
        self.broker_address = f"{HOST}:{settings.broker_port or free_port(but=(namesrv_port,))}"
        self._registered_address = self.broker_address
        """The address in routes. The option --advertise and the setting broker_ip change it."""
        self.access_key = new_inner_key()
        """The access key of the parts. They know it from their environment as that of a super user."""
        self._listeners: dict[str, Listener] = {}
        self._problem: str | None = None
        self._rejection: str | None = None
        """The broker's last reason for rejecting messages; None while it accepts them."""
        self._tls: ServerTls | None = None
        self._local_tls = local_tls(settings.tls)
        self.namesrv = self._part("name server", self._namesrv_command())
        self.broker = self._part("broker", self._broker_command())
        self.pipeline: PipelineSupervisor | None = None
        if settings.with_pipeline:
            self.pipeline = PipelineSupervisor(
                [self.broker_address],
                self.logs,
                clock=clock,
                on_change=self._pipeline_changed,
                master=settings.master,
                tls=self._local_tls,
                access_key=self.access_key,
            )
        self.dashboard_url: str | None = None
        self._dashboard: Dashboard | None = None
        self._figures = DashboardFigures(self._ask_broker, clock, expects_pipeline=settings.with_pipeline)
        self._connections = Connections(sign=self.access_key.sign, tls=client_tls(self._local_tls))
        self._routes = RouteCache((self.namesrv_address,), self._connections, timeout_s=1.0)

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def children(self) -> list[ManagedProcess]:
        """The parts that run, in the order in which they are stopped."""
        pipeline = [self.pipeline.child] if self.pipeline is not None else []
        return [*pipeline, self.broker, self.namesrv]

    def _sessions(self) -> Sessions | None:
        """Return the logins of the dashboard; None without users."""
        pairs = namesrv_auth_pairs(self.settings.config, self.settings.broker_settings, self.store)
        if "authentication_enabled=true" not in pairs:
            return None
        notes = login_notes(self.logs / "audit-dashboard.log", self._clock)
        return Sessions(UserRequests(asks(self.broker_address, client_tls(self._local_tls))), self._clock, notes)

    @property
    def metrics_url(self) -> str | None:
        """The address for Prometheus; None without a dashboard, which serves it."""
        return None if self.dashboard_url is None else f"{self.dashboard_url}metrics"

    @property
    def network_namesrv(self) -> str | None:
        """The name server for clients on other machines; None if they cannot reach it, or the broker."""
        exposed = all(one.is_exposed for one in self._listeners.values()) and len(self._listeners) == 2
        host = self._registered_address.rpartition(":")[0]
        return f"{host}:{self.namesrv_address.rpartition(':')[2]}" if exposed and not is_loopback(host) else None

    def open_ports(self) -> list[ExposedPort]:
        """Return the ports of the parts that other machines can connect to now."""
        parts = [(child.name, child.pid) for child in reversed(self.children)]
        return open_ports(parts, int(self.broker_address.rpartition(":")[2]))

    # Life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the parts. Returns once the broker accepts sends and the pipeline turns. Raises StackFailed."""
        problem = stores.home_problem(self.home)
        if problem is not None:
            raise StackFailed(f"{problem}: choose another --home")
        if self.namesrv_address == self.broker_address:
            raise StackFailed(
                "name server and broker need a port each: choose others with --namesrv-port, --broker-port"
            )
        tls_problem = local_problem(self.settings.tls)
        if tls_problem is not None:
            raise StackFailed(tls_problem)
        for address, option in ((self.namesrv_address, "--namesrv-port"), (self.broker_address, "--broker-port")):
            port = int(address.rpartition(":")[2])
            if not is_free(port):
                raise StackFailed(taken_text(port, option))
        self._check_dashboard()
        self.namesrv.start()
        self.broker.start()
        if self.pipeline is not None:
            self.pipeline.start()
        await self._start_dashboard()
        patience_s = PATIENCE_S
        report_at_s = self._clock.monotonic() + patience_s
        while not await self._is_ready():
            self.raise_failure()
            if self._clock.monotonic() > report_at_s:
                patience_s *= 2
                report_at_s = self._clock.monotonic() + patience_s
                self._tell(f"still starting: {self._awaited()}; the logs are in {self.logs}")
            await asyncio.sleep(LOOK_S)
        for child in self.children:
            child.came_up()
        for text in exposure.warnings(self._listeners["name server"], self._listeners["broker"]):
            self._tell(f"WARNING: {text}")

    def _check_dashboard(self) -> None:
        """Check the port and the certificate of the dashboard before any part starts. Raises StackFailed."""
        port = self.settings.dashboard_port
        if port is None:
            return
        if f"{HOST}:{port}" in (self.namesrv_address, self.broker_address):
            raise StackFailed("the dashboard needs a port of its own: choose another with --dashboard-port")
        if port and not is_free(port):
            raise StackFailed(taken_text(port, "--dashboard-port"))
        chosen = self.settings.tls
        try:
            self._tls = open_server_tls(chosen.server_options(), lambda: chosen.mode, clock=self._clock)
        except TlsError as error:
            raise StackFailed(str(error)) from None

    async def _start_dashboard(self) -> None:
        """Start the dashboard, which reports that there is no broker until one answers. Raises StackFailed.

        The parts start first: they run while this process imports the web framework, which takes a quarter of a second.
        """
        port = self.settings.dashboard_port
        if port is None:
            return
        from wheelmq.dashboard.metrics import BrokerMetrics
        from wheelmq.dashboard.server import Dashboard

        metrics = BrokerMetrics(self._ask_for_metrics, self._clock)
        self._dashboard = Dashboard(self._figures, metrics, self._clock, self._sessions())
        try:
            self.dashboard_url = await self._dashboard.start(port, self._tls)
        except OSError:
            raise StackFailed(taken_text(port, "--dashboard-port")) from None

    async def wait_for_failure(self) -> None:
        """Wait until a part cannot be restarted. Raises StackFailed."""
        waiting = [asyncio.create_task(child.failed.wait()) for child in self.children]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        self.raise_failure()

    def raise_failure(self) -> None:
        for child in self.children:
            if child.failure is not None:
                end = tail_text(child.log_path, child.log_start, child.failure) or f"\nIts log is {child.log_path}."
                raise StackFailed(f"the {child.name} cannot run: {child.failure}{end}")
        if self._problem is not None:
            raise StackFailed(self._problem)

    async def stop(self) -> bool:
        """Stop pipeline, broker and name server, in this order. Returns False if a part was killed or dead."""
        if self._dashboard is not None:
            await self._dashboard.stop()
        if self._tls is not None:
            await self._tls.stop()
        await self._connections.close()
        stopped = [await self.pipeline.stop()] if self.pipeline is not None else []
        stopped.append(await self.broker.stop(BROKER_STOP_DEADLINE_S))
        stopped.append(await self.namesrv.stop(NAMESRV_STOP_DEADLINE_S))
        return all(stopped)

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def _awaited(self) -> str:
        if not self.broker.is_up:
            compiles = os.environ.get("WHEELMQ_KERNELS") == "compiled"
            return f"broker ({COMPILES if compiles else READS})"
        if self._rejection is not None:
            return f"the broker, which rejects messages: {self.disk_rejection() or self._rejection}"
        waiting = ", ".join(child.name for child in self.children if not child.is_up)
        return waiting or ("first turn of the pipeline" if self.pipeline is not None else "registration of the broker")

    def disk_rejection(self) -> str | None:
        """Return why the disk of the store makes the broker reject messages, with the remedy; None if it does not."""
        from wheelmq.broker.start_warnings import REMEDY

        try:
            problem = disk_problem(settings_from(self.settings.config, self.settings.broker_settings, self.store))
        except (CannotStart, OSError):
            return None
        return None if problem is None else f"{problem}; {REMEDY}"

    # State
    # -----------------------------------------------------------------------------------------------------------

    async def metrics(self) -> dict[str, Any] | None:
        """Return the broker's metrics of itself and of the pipeline; None while it does not answer."""
        try:
            answer = await self._ask_broker(Command(code=RequestCode.WMQ_METRICS))
        except (CallError, Refused):
            return None
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    async def _ask_broker(self, command: Command) -> Command:
        return await self._connections.to(self.broker_address).ask(command, BROKER_ANSWER_S)

    async def _ask_for_metrics(self, command: Command) -> Command:
        return await self._connections.to(self.broker_address).ask(command, METRICS_ANSWER_S)

    async def _is_ready(self) -> bool:
        try:
            registered = self._registered_address in (await self._routes.brokers()).values()
        except (CallError, Refused):
            return False
        has_spoken = len(self._listeners) == 2  # a part's line may arrive after its registration
        found = await self.metrics() if registered and has_spoken else None
        self._rejection = None if found is None else found.get("refusal")
        if found is None or not found["takes_sends"]:
            return False
        if self.pipeline is None:
            return True
        is_ours = found["pipeline"]["holder"] == self.pipeline.name
        return is_ours and found["pipeline"]["is_turning"] and self.pipeline.state is PipelineState.TURNING

    def _pipeline_changed(self, text: str) -> None:
        if any(child.failure is not None for child in self.children):
            return  # all parts are about to stop
        if self.broker.is_up or not text.startswith("waits"):  # do not report a wait for a broker that is starting
            child = self.pipeline.child if self.pipeline is not None and text.startswith("died") else None
            end = "" if child is None else tail_text(child.log_path, child.log_start)
            self._tell(f"pipeline: {text}{end}")

    # The parts -----------------------------------------------------------------------------------------------------

    def _part(self, name: str, command: list[str]) -> ManagedProcess:
        def heard(event: Event) -> None:
            if event.get("event") == "warning":
                self._tell(f"{name}: WARNING: {event.get('warning')}")
            if event.get("event") == "listening":
                child.came_up()
                self._note_listener(name, event)
                self._tell(f"{name}: listens on {event.get('address')}{' again' if child.deaths else ''}")

        def died(how: str, pause_s: float) -> None:
            again = "at once" if not pause_s else f"in {pause_s:g} s"
            end = tail_text(child.log_path, child.log_start)
            self._tell(f"{name}: DIED ({how}); it is started again {again}{end}")

        child = ManagedProcess(
            name,
            command,
            self.logs / f"{name.replace(' ', '')}.log",
            clock=self._clock,
            on_event=heard,
            on_death=died,
            environment=variables_of(self.access_key),
        )
        return child

    def _note_listener(self, name: str, event: Event) -> None:
        address = str(event.get("address"))
        host, port = str(event.get("listen_host", HOST)), int(address.rpartition(":")[2])
        listener = Listener(
            name,
            host,
            port,
            tls=TlsMode(event.get("tls", TlsMode.DISABLED)),
            needs_certificate=self.settings.tls.client_auth is ClientAuth.REQUIRE,
            has_users=bool(event.get("has_users")),
        )
        self._listeners[name] = listener
        if name == "broker":
            self._registered_address = str(event.get("registered", address))
        if not listener.is_local:
            self._problem = exposure.unreachable_text(listener)

    def _namesrv_command(self) -> list[str]:
        command = [*_wheelmq("nameserver"), "--home", str(self.home), "--port", self.namesrv_address.rpartition(":")[2]]
        if self.settings.namesrv_host is not None:
            command += ["--set", f"listen_host={self.settings.namesrv_host}"]
        auth = namesrv_auth_pairs(self.settings.config, self.settings.broker_settings, self.store)
        for pair in (*pairs_of(self.settings.tls), *auth):
            command += ["--set", pair]
        config = self.settings.config
        return [*command, "--config", str(config)] if config is not None and is_toml(config) else command

    def _broker_command(self) -> list[str]:
        command = [*_wheelmq("broker"), "--home", str(self.home), "--port", self.broker_address.rpartition(":")[2]]
        command += ["--store", str(self.store), "--namesrv", self.namesrv_address]
        if self.settings.config is not None:
            command += ["--config", str(self.settings.config)]
        if self.settings.advertise is not None:
            command += ["--advertise", self.settings.advertise]
        if self.settings.flush is not None:
            command += ["--flush", self.settings.flush]
        for pair in (*broker_pairs(self.settings.tls), *self.settings.broker_settings):
            command += ["--set", pair]
        for hook in self.settings.hooks:
            command += ["--hook", hook]
        return command


def _wheelmq(part: str) -> list[str]:
    return [sys.executable, "-P", "-m", "wheelmq", part, "--json", "--ends-with-stdin"]
