"""A broker process: core, sockets, worker threads, and the registration at the name servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wheelmq.auth.credentials_file import read_token
from wheelmq.auth.exposure import exposure_problem, metrics_problem
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.broker import Broker, open_broker
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.kernel_use import KernelState, KernelUse
from wheelmq.broker.kernels import Kernels
from wheelmq.broker.metrics.reader import FamilyReader
from wheelmq.broker.parts import ProcessContext
from wheelmq.broker.registration import Registrar
from wheelmq.broker.replication.controller.controller_client import ControllerClient
from wheelmq.broker.replication.controller.elections import Elections
from wheelmq.broker.replication.following import Following
from wheelmq.broker.replication.master_watch import LaterMaster, MasterWatch
from wheelmq.broker.replication.replication import MasterAddress, Replication
from wheelmq.broker.replication.role import StoredRole, store_role
from wheelmq.broker.settings import BrokerSettings, MetricsExporter, NodeSettings
from wheelmq.broker.start_warnings import body_size_warning
from wheelmq.broker.task_list import TickTask, every
from wheelmq.config.bounds import FAST_PORT_BELOW
from wheelmq.config.changes import Origin
from wheelmq.config.errors import ConfigError
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.replica_port import ReplicaPort
from wheelmq.net.server import Server
from wheelmq.net.server_tls import ServerTls, open_server_tls
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.disk import Disk
from wheelmq.system.memory import COLLECTION_S, Collections, FreedMemory, keep_freed_memory
from wheelmq.system.open_files import connections_possible
from wheelmq.system.rotating_file import RotatingFile
from wheelmq.system.tls_client import client_tls
from wheelmq.system.workers import ThreadWorker, Workers

if TYPE_CHECKING:
    from wheelmq.broker.exporter import Exporter
    from wheelmq.broker.metrics.otlp import OtlpExporter

CROWD = 20_000
"""Number of held requests above which the broker postpones full garbage collections."""
MEMORY_CHECK_MS = 5000
"""Time between two checks for freed memory."""
log = logging.getLogger(__name__)


class _Shell:
    """The way of the broker and its workers to the server, which opens after the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._server: Server | None = None

    def open(self, server: Server) -> None:
        self._server = server

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop, and then tick. Any thread may call this."""
        if self._server is not None:
            self._server.rounds.on_loop(callback)
        else:
            self._loop.call_soon_threadsafe(callback)

    def figures(self) -> dict[str, int]:
        return {} if self._server is None else self._server.figures()


class BrokerApp:
    """A broker that listens and registers itself."""

    def __init__(
        self,
        settings: BrokerSettings,
        origin: Origin | None = None,
        hooks: Hooks | None = None,
        access_key: AccessKey | None = None,
        *,
        clock: Clock | None = None,
        owns_process: bool = True,
        may_compile: bool = True,
    ) -> None:
        """Prepare a broker. `owns_process` says that the broker may configure the process for itself.

        With `may_compile=False`, a broker without compiled kernels runs their twins, and compiles nothing.

        `access_key` is that of the processes of one `wheelmq up`, which the broker knows as a super user.
        """
        self._clock, self._owns_process, self._may_compile = clock or SystemClock(), owns_process, may_compile
        self._has_fixed_port = settings.broker.listen_port != 0
        self._reserved_port: socket.socket | None = None
        """Keeps the port that the system chose from all others, until the broker listens."""
        if settings.broker.listen_port == 0:
            self._reserved_port = _bound_socket(settings.broker.listen_host)
            port = int(self._reserved_port.getsockname()[1])
            node = msgspec.structs.replace(settings.broker, listen_port=port)
            settings = msgspec.structs.replace(settings, broker=node)
        self.settings = settings
        self._origin = origin
        audit_file = settings.auth.audit_file
        self._kernel_use = KernelUse()
        self._process = ProcessContext(
            access_key, RotatingFile(Path(audit_file)) if audit_file else None, self._kernel_use
        )
        self.hooks = hooks or Hooks()
        """Register hooks here, before the start or later."""
        self._server: Server | None = None
        self._tls: ServerTls | None = None
        self._workers: Workers | None = None
        self._kernels: Kernels | None = None
        self.broker: Broker | None = None
        self.registration: Registrar | None = None
        self.following: Following | None = None
        """Follows the master, if this broker started as a slave."""
        self._watch: MasterWatch | None = None
        self._controller: ControllerClient | None = None
        self.next_life: Callable[[], object] | None = None
        """The work between the stop of this broker and its next start in another role; None if it ends for good."""
        self._replica_port: ReplicaPort | None = None
        self.exporter: Exporter | None = None
        self.otlp: OtlpExporter | None = None
        self.stopped = asyncio.Event()
        """Set once the broker has failed and must stop, for example because its disk failed."""

    async def start(self) -> None:
        """Recover the store, listen and register. Kernels that are not compiled yet are put to use later.

        A broker that must change its role first does not listen: see `next_life`. Raises TlsError, StoreLocked,
        OSError, and ConfigError if other machines could reach a broker without users.
        """
        self._check_exposure(has_users=True)
        loop = asyncio.get_running_loop()
        self._open_tls()
        if (warning := body_size_warning(self.settings)) is not None:
            log.warning(warning)
        if self._owns_process:
            keep_freed_memory()
        shell = _Shell(loop)
        workers = self._workers = Workers.of(lambda name: ThreadWorker(name, shell.on_loop))
        kernels = Kernels(
            self._kernel_use,
            self._clock,
            lambda: ThreadWorker("kernels", shell.on_loop),
            may_compile=self._may_compile,
        )
        broker = self._open_broker(kernels, workers, shell)
        parts = broker.parts
        self._check_exposure(has_users=bool(parts.access.tables.users.all()))
        registration = self.registration = Registrar(
            self.settings, parts.topics, parts.replication, parts.clock, parts.sign
        )
        await self._check_role(broker)
        if self.next_life is not None:
            return
        self._server = Server(
            broker,
            limits=_limits(self.settings),
            sockets=_socket_options(self.settings.broker),
            after_tick=partial(self._stop_if_asked, broker.parts.health, broker.parts.replication),
            tls=self._tls,
        )
        shell.open(self._server)
        kernels.begin_to_serve()
        self._release_port()
        await self._server.listen(self.settings.broker.listen_host, self.settings.broker.listen_port)
        if self.settings.connections.fast_port:
            await self._listen_fast()
        await self._listen_for_replicas(broker)
        self._export_metrics(FamilyReader(parts.metric_sources, loop), parts.boot_ms)
        broker.tasks.add(TickTask("registration", lambda at: registration.poll()))
        if self._kernel_use.state is KernelState.COMPILING:
            broker.tasks.add(TickTask("kernels", lambda at: kernels.poll(self._use_kernels)))
        if self._owns_process:
            self._add_memory_tasks(broker, workers)
        if parts.elections is not None:
            self._obey(parts.elections, broker, registration)
        else:
            registration.start()
            self._watch = MasterWatch(broker.parts, self._step_down)
            self._watch.start()
            if not broker.parts.role.is_master:
                self._follow(broker, registration.masters, registration.register_soon)
        if self._owns_process:
            gc.freeze()  # later collections check only objects that requests create; a start leaves hardly any garbage

    def _release_port(self) -> None:
        if self._reserved_port is not None:
            self._reserved_port.close()
            self._reserved_port = None

    def _open_broker(self, kernels: Kernels, workers: Workers, shell: _Shell) -> Broker:
        """Begin to load or compile the kernels, and recover the store. Raises StoreLocked, OSError, ConfigError."""
        self._kernels = kernels
        kernels.begin()
        try:
            self.broker = open_broker(
                self.settings,
                disk=Disk(),
                clock=self._clock,
                workers=workers,
                randomness=random.Random(),
                origin=self._origin,
                hooks=self.hooks,
                process=self._process,
                shell_figures=shell.figures,
            )
        except BaseException:
            kernels.stop()
            raise
        return self.broker

    def _use_kernels(self) -> None:
        """Serve by the kernels, which are loaded now."""
        assert self.broker is not None
        self.broker.parts.use_kernels()
        if self._owns_process:
            gc.freeze()  # the objects of Numba stay

    def tick_soon(self) -> None:
        """Tick after this round, because the clock was moved. Only the thread of the loop may call this."""
        if self._server is not None:
            self._server.rounds.schedule_tick()

    async def _check_role(self, broker: Broker) -> None:
        """Look for a later master before the first request is served.

        The log of a SYNC_MASTER may end with records that no replica got. Consumers must not see them if there is a
        later master. So a SYNC_MASTER waits for an answer.
        """
        if not broker.parts.role.is_master:
            return
        watch = MasterWatch(broker.parts, self._step_down)
        if broker.parts.role.is_sync:
            later = await watch.wait_for_answer()
        else:
            later = await watch.later_master()
        if later is not None:
            self._step_down(later)

    async def _listen_for_replicas(self, broker: Broker) -> None:
        """Listen on the HA port, if it is free. A broker whose replicas come later may start without it."""
        assert self._server is not None
        settings, node = self.settings.replication, self.settings.broker
        rounds = self._server.rounds
        self._replica_port = ReplicaPort(broker, rounds.schedule_round, rounds.schedule_tick)
        wanted = settings.ha_port or (node.listen_port + 1 if self._has_fixed_port else 0)
        try:
            broker.parts.replication.ha_port = await self._replica_port.listen(node.listen_host, wanted, self._tls)
        except (OSError, OverflowError) as error:
            log.warning(
                "the broker could not open the HA port %d: %s. Replicas cannot follow this broker. Set "
                "ha_listen_port to a free port",
                wanted,
                error,
            )

    def _obey(self, elections: Elections, broker: Broker, registration: Registrar) -> None:
        """Register at the controller, and at the name servers once the controller has chosen the role."""
        assert self._server is not None

        def begin_role() -> None:
            if not registration.is_started:
                registration.start()
            registration.register_soon()
            if self.following is None and not broker.parts.role.is_master:
                self._follow(broker, elections.masters, controller.ask_soon)

        controller = self._controller = ControllerClient(
            broker.parts, elections, begin_role, self._server.rounds.schedule_tick, lambda: self._end_life(lambda: None)
        )
        controller.start()

    def _follow(
        self, broker: Broker, find_masters: Callable[[], list[MasterAddress]], ask_soon: Callable[[], None]
    ) -> None:
        """Follow the master of the broker name, until this broker is the master."""
        assert self._server is not None

        self.following = Following(
            broker,
            find_masters,
            ask_soon,
            self._server.rounds.schedule_round,
            self._server.rounds.schedule_tick,
            self._end_life,
        )
        self.following.start()

    def _step_down(self, later: LaterMaster) -> None:
        """Become a slave of a later master, in the next life."""
        assert self.broker is not None
        disk, paths = self.broker.parts.disk, self.broker.parts.paths
        log.warning(
            "the broker at %s is the master of this name since a later epoch (%d): this broker becomes its slave",
            later.address,
            later.epoch,
        )
        self._end_life(lambda: store_role(disk, paths, StoredRole(is_master=False, broker_id=later.free_id)))

    def _end_life(self, between: Callable[[], object]) -> None:
        """Stop, and do the work `between` before the next start."""
        self.next_life = between
        self.stopped.set()

    def _open_tls(self) -> None:
        """Load the certificates of the server and of own connections. Raises TlsError."""
        settings = self.settings.tls
        outgoing = client_tls(settings.outgoing_options())
        if outgoing is not None:
            outgoing.context()  # a bad file is an error of the start, not of each registration
        self._tls = open_server_tls(settings.server_options(), lambda: settings.mode, clock=SystemClock())

    def _check_exposure(self, *, has_users: bool) -> None:
        """Raise ConfigError if other machines can reach the broker or its metrics without credentials."""
        auth, node, metrics = self.settings.auth, self.settings.broker, self.settings.metrics
        problem = exposure_problem(f"the broker {node.name}", node.listen_host, auth, has_users=has_users)
        if problem is None and metrics.exporter is MetricsExporter.PROM and not metrics.prom_token_file:
            problem = metrics_problem(metrics.prom_host, auth)
        if problem is not None:
            raise ConfigError(problem)

    def _export_metrics(self, reader: FamilyReader, boot_ms: Millis) -> None:
        """Start the exporter of the settings. Raises ConfigError, OSError. Only an exporter loads its library."""
        settings = self.settings.metrics
        if settings.exporter is MetricsExporter.PROM:
            from wheelmq.broker.exporter import Exporter

            self.exporter = Exporter(reader, self._clock, settings.prom_host, settings.prom_port, self._metrics_token())
        elif settings.exporter is MetricsExporter.OTLP_GRPC:
            try:
                from wheelmq.broker.metrics.otlp import OtlpExporter
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"metrics_exporter_type is OTLP_GRPC, and the package of {error.name} is not installed: `pip "
                    'install "wheelmq[opentelemetry]"`'
                ) from None
            self.otlp = OtlpExporter(reader.read, settings, self._clock, boot_ms)

    def _metrics_token(self) -> str | None:
        """Return the token of the metrics, or None without one. Raises ConfigError, OSError."""
        path = self.settings.metrics.prom_token_file
        return read_token(Disk(), Path(path)) if path else None

    def _add_memory_tasks(self, broker: Broker, workers: Workers) -> None:
        """Collect garbage at quiet times, and return freed memory to the system."""
        freed_memory, collections = FreedMemory(), Collections(broker.parts.clock.monotonic)
        interval_ms = int(COLLECTION_S * 1000)

        def poll_collections() -> None:
            collections.poll(is_crowded=len(broker.parts.holds) > CROWD)

        def trim() -> None:
            run_in_background(freed_memory.trim_job(), workers.reading)

        broker.tasks.add(every("garbage collection", interval_ms, poll_collections, broker.parts.clock))
        broker.tasks.add(every("freed memory", MEMORY_CHECK_MS, trim, broker.parts.clock))

    async def _listen_fast(self) -> None:
        """Listen on the fast port too (RocketMQ: fastRemotingServer). No start depends on it: few clients use it."""
        assert self._server is not None
        port = self.settings.broker.listen_port - FAST_PORT_BELOW
        try:
            await self._server.listen(self.settings.broker.listen_host, port)
        except (OSError, OverflowError) as error:
            log.warning(
                "the broker could not open the fast port %d: %s. Clients with a VIP channel cannot reach the "
                "broker. Choose another listen_port, which is %d above the fast port. Without such clients, set "
                "fast_port_enable=false",
                port,
                error,
                FAST_PORT_BELOW,
            )

    def _stop_if_asked(self, health: StoreHealth, replication: Replication) -> None:
        """Stop a broker that has failed, and one that must start again to become the master."""
        if health.failure is not None:
            self.stopped.set()
        elif replication.must_start_again and self.next_life is None:
            self._end_life(lambda: None)

    async def stop(self) -> None:
        """Stop cleanly: take no new requests, and write everything to disk."""
        self._release_port()
        if self.broker is not None:
            self.broker.parts.admission.stop()
        if self._controller is not None:
            await self._controller.stop()  # it then elects another master
        if self.exporter is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.exporter.close)
        if self.otlp is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.otlp.close)
        if self._watch is not None:
            await self._watch.stop()
        if self.following is not None:
            await self.following.stop()
        if self._replica_port is not None:
            await self._replica_port.close()
        if self.registration is not None:
            await self.registration.stop()
        if self._server is not None:
            await self._server.close()
        if self._kernels is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._kernels.stop)
        if self._tls is not None:
            await self._tls.stop()
        if self._workers is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._workers.close)
        await asyncio.sleep(0)  # the loop runs the last callbacks of the workers
        if self.broker is not None:
            self.broker.close()


def _socket_options(node: NodeSettings) -> SocketOptions:
    return SocketOptions(node.listen_backlog, node.socket_send_bytes, node.socket_receive_bytes)


def _limits(settings: BrokerSettings) -> Limits:
    possible = connections_possible(settings.connections.max)
    if possible < settings.connections.max:
        log.warning(
            "the broker accepts at most %d connections, because the process cannot open more files (ulimit -n, or "
            "LimitNOFILE of its service)",
            possible,
        )
    return Limits(
        connections_max=possible,
        buffer_bytes_max=settings.requests.connection_buffer_bytes_max,
        bytes_in_flight_max=settings.connections.bytes_in_flight_max,
        idle_s=settings.connections.idle_seconds_max,
        frame_deadline_s=settings.requests.frame_deadline_ms / 1000,
    )


def _bound_socket(host: str) -> socket.socket:
    """Return a socket that does not listen, on a port that the system chooses. Raises OSError."""
    bound = socket.socket()
    try:
        bound.bind((host, 0))
    except BaseException:
        bound.close()
        raise
    return bound
