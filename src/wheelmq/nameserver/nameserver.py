"""The core of the name server (RocketMQ: DefaultRequestProcessor of the name server)."""

from __future__ import annotations

import ipaddress
import logging
import zlib
from collections.abc import Callable

from wheelmq.config.changes import ChangeRejected, Configuration, Origin
from wheelmq.config.tls import TlsSettings
from wheelmq.formats.wire import bodies, frame, headers
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.command_text import command_text
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import REPLACED_ADDRESS, HeaderError
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.nameserver import compressed
from wheelmq.nameserver.access import NameServerAccess
from wheelmq.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from wheelmq.nameserver.listings import Listings
from wheelmq.nameserver.routes import EXPIRY_MS, LiveBroker, RouteTable
from wheelmq.nameserver.settings import NAME_SERVER, NameServerSettings, NameServerTables
from wheelmq.net.server_connection import ServerConnection
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)


class NameServer:
    def __init__(
        self,
        settings: NameServerSettings,
        *,
        disk: Disk,
        clock: Clock,
        origin: Origin | None = None,
        access_key: AccessKey | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """Create a name server. It answers requests for `settings` and `tls`, and changes them.

        `access_key` is that of the processes of one `wheelmq up`. Raises ConfigError, OSError.
        """
        self.settings = settings
        self.access = NameServerAccess(settings, disk=disk, clock=clock, access_key=access_key)
        self.configuration = Configuration(
            NAME_SERVER,
            NameServerTables(nameserver=settings, tls=tls or TlsSettings()),
            origin or Origin(),
            disk=disk,
            clock=clock,
            changed=self._settings_changed,
        )
        self.routes = RouteTable(lambda: settings.delete_topic_with_broker_registration)
        self.kv = KvConfig(disk, settings.kv_config_path)
        self._clock = clock
        self._log = RateLimitedLog(log, clock.monotonic)
        self._next_scan_ms = 0
        self._began_ms = self._now_ms()
        self._handlers: dict[int, Callable[[Command, ServerConnection], Command]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.GET_NAMESRV_CONFIG: self._config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }
        listings = Listings(self.routes, lambda: settings.enable_topic_list, self._now_ms)
        self._handlers |= {code: _for_anyone(serve) for code, serve in listings.handlers().items()}

    @property
    def codes(self) -> frozenset[int]:
        return frozenset(self._handlers)

    # Called by the shell ------------------------------------------------------------------------------------------

    def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        """Serve frames in `buffer[:end]` until the connection must wait. Returns their bytes. Raises FrameError."""
        at = 0
        while connection.is_open and not connection.must_wait:
            stop = frame.frame_end(buffer, at, end)
            if stop is None:
                break
            request = frame.decode(buffer, at, stop)
            at = stop
            if request.is_response:
                continue
            connection.last_request, connection.sends = (request.code, request.opaque), False
            answer = self._serve(request, connection)
            if not request.is_oneway:
                answer.opaque = request.opaque
                answer.flag |= frame.FLAG_RESPONSE
                connection.send(frame.encode(answer))
        return at

    def connection_lost(self, connection: ServerConnection) -> None:
        for address in self.routes.lose(connection):
            log.info("removed broker %s: its connection closed", address)

    def end_round(self) -> bool:
        """Return that a tick is due. Requests leave no work for the end of a round, and a tick is cheap."""
        return True

    def tick(self, *, by_event: bool = True) -> None:
        now_ms = self._now_ms()
        self.access.poll(now_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self.settings.scan_interval_ms
            for address in self.routes.expire(now_ms):
                log.info("removed broker %s: it did not register in time", address)

    def next_tick_ms(self) -> int:
        look_ms = self.access.next_ms()
        next_ms = self._next_scan_ms if look_ms is None else min(look_ms, self._next_scan_ms)
        return max(1, next_ms - self._now_ms())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _serve(self, request: Command, connection: ServerConnection) -> Command:
        try:
            rejection = self.access.rejection(request, connection)
            if rejection is not None:
                return rejection
            answer = self._answer(request, connection)
        except (HeaderError, BodyError) as error:
            answer = Command(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception as error:
            what = command_text(request)
            self._log.exception(type(error).__name__, "request %s from %s failed", what, connection.peer)
            answer = Command(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"[:1024])
        self.access.note(request, connection, answer)
        return answer

    def _answer(self, request: Command, connection: ServerConnection) -> Command:
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return handler(request, connection)

    def _settings_changed(self, fields: frozenset[str]) -> None:
        self._next_scan_ms = 0

    # Brokers and routes --------------------------------------------------------------------------------------------

    def _register(self, request: Command, connection: ServerConnection) -> Command:
        header = headers.read(request.ext, headers.RegisterBrokerHeader)
        raw = bytes(request.body)
        if header.body_crc32 and zlib.crc32(raw) & 0x7FFF_FFFF != header.body_crc32:
            return Command(code=ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        body = _registration(raw, said_compressed=header.compressed) if raw else None
        wrapper = body.topic_config_serialize_wrapper if body else bodies.TopicConfigTable()
        live = LiveBroker(
            name=header.broker_name,
            cluster=header.cluster_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            version=wrapper.data_version,
            last_seen_ms=self._now_ms(),
            expiry_ms=header.heartbeat_timeout_millis or EXPIRY_MS,
            connection=connection,
        )
        master = self.routes.register(
            live, wrapper.topic_config_table if body else None, acting_master=header.enable_acting_master
        )
        answer = Command(code=ResponseCode.SUCCESS)
        if master is not None:
            answer.ext = headers.texts(masterAddr=master, haServerAddr=self.routes.ha_address_of(master))
        if self.routes.replaced is not None:
            answer.ext[REPLACED_ADDRESS] = self.routes.replaced
            self._log.warn(
                "twin",
                "two brokers have the name %r and the id %d: %s, which has just registered, and %s; clients get "
                "the address of the last one that registered. Give one of the two another broker_name",
                live.name,
                live.broker_id,
                live.address,
                self.routes.replaced,
            )
        ordered = self.kv.all(ORDER_TOPIC_CONFIG)
        if ordered and self.settings.return_order_topic_config:
            answer.body = bodies.write({"table": ordered})
        return answer

    def _unregister(self, request: Command, connection: ServerConnection) -> Command:
        self.routes.unregister(headers.read(request.ext, headers.UnregisterBrokerHeader).broker_addr)
        return Command(code=ResponseCode.SUCCESS)

    def _route(self, request: Command, connection: ServerConnection) -> Command:
        topic = headers.read(request.ext, headers.TopicHeader).topic
        if self._waits():
            return Command(code=ResponseCode.SYSTEM_ERROR, remark="name server not ready")
        route = self.routes.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return Command(code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        if self.settings.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPIC_CONFIG, topic)
        return Command(code=ResponseCode.SUCCESS, body=bodies.write(route))

    def _waits(self) -> bool:
        settings = self.settings
        since_ms = self._now_ms() - self._began_ms
        return settings.waits_for_service and since_ms < settings.wait_for_service_seconds * 1000

    def _clusters(self, request: Command, connection: ServerConnection) -> Command:
        return Command(code=ResponseCode.SUCCESS, body=bodies.write(self.routes.clusters()))

    def _topics(self, request: Command, connection: ServerConnection) -> Command:
        if not self.settings.enable_all_topic_list:
            return Command(code=ResponseCode.SYSTEM_ERROR, remark="disable")
        return Command(code=ResponseCode.SUCCESS, body=bodies.write({"topicList": self.routes.topics()}))

    def _delete_topic(self, request: Command, connection: ServerConnection) -> Command:
        header = headers.read(request.ext, headers.DeleteTopicHeader)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return Command(code=ResponseCode.SUCCESS)

    def _wipe_write(self, request: Command, connection: ServerConnection) -> Command:
        broker = headers.read(request.ext, headers.BrokerNameHeader).broker_name
        count = self.routes.set_write_permission(broker, allowed=False)
        return Command(code=ResponseCode.SUCCESS, ext=headers.texts(wipeTopicCount=count))

    def _add_write(self, request: Command, connection: ServerConnection) -> Command:
        broker = headers.read(request.ext, headers.BrokerNameHeader).broker_name
        count = self.routes.set_write_permission(broker, allowed=True)
        return Command(code=ResponseCode.SUCCESS, ext=headers.texts(addTopicCount=count))

    # Key-value config ----------------------------------------------------------------------------------------------

    def _put_kv(self, request: Command, connection: ServerConnection) -> Command:
        header = headers.read(request.ext, headers.KvHeader)
        if header.value is None:
            return Command(code=ResponseCode.SYSTEM_ERROR, remark="namespace, key and value are required")
        self.kv.put(header.namespace, header.key, header.value)
        return Command(code=ResponseCode.SUCCESS)

    def _get_kv(self, request: Command, connection: ServerConnection) -> Command:
        header = headers.read(request.ext, headers.KvHeader)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Command(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return Command(code=ResponseCode.SUCCESS, ext={"value": value})

    def _delete_kv(self, request: Command, connection: ServerConnection) -> Command:
        header = headers.read(request.ext, headers.KvHeader)
        self.kv.delete(header.namespace, header.key)
        return Command(code=ResponseCode.SUCCESS)

    def _list_kv(self, request: Command, connection: ServerConnection) -> Command:
        namespace = headers.read(request.ext, headers.NamespaceHeader).namespace
        table = self.kv.all(namespace)
        if table is None:
            remark = f"No config item, Namespace: {namespace}"
            return Command(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return Command(code=ResponseCode.SUCCESS, body=bodies.write({"table": table}))

    # Settings ------------------------------------------------------------------------------------------------------

    def _config(self, request: Command, connection: ServerConnection) -> Command:
        return Command(code=ResponseCode.SUCCESS, body=self.configuration.text())

    def _update_config(self, request: Command, connection: ServerConnection) -> Command:
        peer = connection.peer
        log.info("%s:%d changes settings", ipaddress.ip_address(peer.address), peer.port)
        try:
            self.configuration.update(bytes(request.body))
        except ChangeRejected as rejection:
            return Command(code=rejection.code, remark=rejection.remark)
        return Command(code=ResponseCode.SUCCESS)


def _for_anyone(serve: Callable[[Command], Command]) -> Callable[[Command, ServerConnection], Command]:
    def handler(request: Command, connection: ServerConnection) -> Command:
        return serve(request)

    return handler


def _registration(raw: bytes, *, said_compressed: bool) -> bodies.Registration:
    """Parse a registration. Raises BodyError."""
    if said_compressed or compressed.is_compressed(raw):
        return compressed.read(raw)
    return bodies.read(raw, bodies.Registration)
