"""Answers of the name server other than routes, for administrators and brokers (RocketMQ: DefaultRequestProcessor)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.routes import RouteTable

UNIT: Final = 1
UNIT_SUB: Final = 2
"""Bits of a topic's system flag (RocketMQ: TopicSysFlag). The topic belongs to a unit, or units subscribe to it."""

Serve = Callable[[Command], Command]


class Listings:
    """Answers from the routes. `is_allowed` returns whether topics may be listed; `now_ms` is monotonic."""

    def __init__(self, routes: RouteTable, is_allowed: Callable[[], bool], now_ms: Callable[[], int]) -> None:
        self._routes = routes
        self._is_allowed = is_allowed
        self._now_ms = now_ms

    def handlers(self) -> dict[int, Serve]:
        return {
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._with_flags(lambda flag: bool(flag & UNIT)),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._with_flags(lambda flag: bool(flag & UNIT_SUB)),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._with_flags(
                lambda flag: flag & (UNIT | UNIT_SUB) == UNIT_SUB
            ),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.QUERY_DATA_VERSION: self._data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
        }

    def _topics_by_cluster(self, request: Command) -> Command:
        cluster = headers.read(request.ext, headers.ClusterHeader).cluster
        return self._listed(lambda: self._routes.topics_of_cluster(cluster))

    def _system_topics(self, request: Command) -> Command:
        clusters = self._routes.clusters()
        names = {*clusters.cluster_addr_table, *clusters.broker_addr_table}
        body: dict[str, object] = {"topicList": sorted(names)}
        for data in clusters.broker_addr_table.values():
            body.setdefault("brokerAddr", next(iter(data.broker_addrs.values()), None))
        return Command(code=ResponseCode.SUCCESS, body=bodies.write(body))

    def _with_flags(self, wanted: Callable[[int], bool]) -> Serve:
        return lambda request: self._listed(lambda: self._routes.topics_with_flag(wanted))

    def _listed(self, topics: Callable[[], list[str]]) -> Command:
        if not self._is_allowed():
            return Command(code=ResponseCode.SYSTEM_ERROR, remark="disable")
        return Command(code=ResponseCode.SUCCESS, body=bodies.write({"topicList": topics()}))

    def _register_topic(self, request: Command) -> Command:
        topic = headers.read(request.ext, headers.TopicHeader).topic
        route = bodies.read(request.body, bodies.Route) if request.body else bodies.Route()
        self._routes.add_topic(topic, route.queue_datas)
        return Command(code=ResponseCode.SUCCESS)

    def _data_version(self, request: Command) -> Command:
        header = headers.read(request.ext, headers.UnregisterBrokerHeader)
        asked = bodies.read(request.body, DataVersion)
        self._routes.beat(header.broker_addr, self._now_ms())
        known = self._routes.version_of(header.broker_addr)
        body = b"" if known is None else bodies.write(known)
        return Command(code=ResponseCode.SUCCESS, ext=headers.texts(changed=known != asked), body=body)

    def _members(self, request: Command) -> Command:
        header = headers.read(request.ext, headers.MemberGroupHeader)
        data = self._routes.clusters().broker_addr_table.get(header.broker_name)
        addresses = {} if data is None or data.cluster != header.cluster_name else data.broker_addrs
        group = {"brokerAddrs": addresses, "brokerName": header.broker_name, "cluster": header.cluster_name}
        return Command(code=ResponseCode.SUCCESS, body=bodies.write({"brokerMemberGroup": group}))

    def _heartbeat(self, request: Command) -> Command:
        self._routes.beat(headers.read(request.ext, headers.BrokerAddressHeader).broker_addr, self._now_ms())
        return Command(code=ResponseCode.SUCCESS)
