"""A name server and controllers of Apache RocketMQ, and brokers of WheelMQ under one name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from compat.apache.apache import ApacheController, ApacheNameServer, free_port, mqadmin
from compat.replication.servers import OurBroker, ask, until
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection

NAME: Final = "broker-c"
CLUSTER: Final = "DefaultCluster"
_BARE_KEY: Final = re.compile(rb"([{,]\s*)(\d+)\s*:")


class ElectedBroker(OurBroker):
    """A broker of WheelMQ. It is registered at the name servers once there is a master."""

    def start(self) -> None:
        super(OurBroker, self).start()

    def state(self) -> ReplicationState | None:
        """Return the state of its replication, or None if it does not answer."""
        try:
            return msgspec.json.decode(ask(self.address, RequestCode.WMQ_REPLICATION_STATE), type=ReplicationState)
        except (CallError, Refused, OSError):
            return None

    @property
    def is_master(self) -> bool:
        state = self.state()
        return state is not None and state.is_master


class Cluster:
    """`with Cluster(folder, brokers=3, controllers=3) as cluster`. The brokers are in sync on entry."""

    def __init__(
        self, folder: Path, brokers: int, controllers: int, *, settings: Mapping[str, object] | None = None
    ) -> None:
        self.names = ApacheNameServer(folder / "names")
        ports = [free_port() for _ in range(controllers)]
        self.controllers = [ApacheController(folder / f"controller-{i}", i, ports) for i in range(controllers)]
        config = {
            "enableControllerMode": "true",
            "controllerAddr": ";".join(one.address for one in self.controllers),
            "brokerName": NAME,
            "brokerClusterName": CLUSTER,
            **(settings or {}),
        }
        self.brokers = [ElectedBroker(folder / f"broker-{i}", self.names.address, config) for i in range(brokers)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.names)
            with ThreadPoolExecutor(len(self.controllers)) as pool:  # one alone gets no leader
                list(pool.map(self._stack.enter_context, self.controllers))
            for broker in self.brokers:
                self._stack.callback(broker.kill)
                broker.start()
            until("all brokers are in sync", self.is_whole)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def master(self) -> ElectedBroker | None:
        return next((one for one in self.brokers if one.is_master), None)

    def sync_state(self) -> dict[str, Any]:
        """Return what the controller knows about the brokers. Raises CallError, Refused."""
        problem: Exception = CallError("there is no controller")
        for controller in self.controllers:
            if not controller.is_running:
                continue
            link = SyncConnection(controller.address)
            try:
                command = Command(code=RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([NAME]).encode())
                raw = _BARE_KEY.sub(rb'\1"\2":', bytes(link.ask(command).body))
                found: dict[str, Any] = json.loads(raw)["replicasInfoTable"].get(NAME, {})
                return found
            except (CallError, Refused) as error:
                problem = error
            finally:
                link.close()
        raise problem

    def in_sync(self) -> set[str]:
        """Return the addresses of the replicas in sync. Raises CallError, Refused."""
        return {one["brokerAddress"] for one in self.sync_state().get("inSyncReplicas", ())}

    def is_whole(self) -> bool:
        """Return whether all brokers are in sync. Raises CallError, Refused."""
        return self.in_sync() == {one.address for one in self.brokers}

    def admin(self, *args: str) -> str:
        """Run a command of Apache's mqadmin. Returns its output."""
        done = mqadmin(args, self.names.address, timeout_s=240.0)
        return done.stdout + done.stderr
