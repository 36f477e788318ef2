"""A model of Apache RocketMQ's controller: its answers, byte for byte, and its rules, over a real socket.

The rules are those of ReplicasInfoManager and DefaultElectPolicy. compat/controller runs the same brokers with the real
controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode as Code
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command


@dataclass
class Replicas:
    """The brokers of one name."""

    addresses: dict[int, str] = field(default_factory=dict)
    check_codes: dict[int, str] = field(default_factory=dict)
    master: int | None = None
    epoch: int = 0
    members: list[int] = field(default_factory=list)
    set_epoch: int = 0


class ControllerModel:
    """One controller, which is the leader unless `is_leader` is False."""

    def __init__(self) -> None:
        self.port = 0
        self.sets: dict[str, Replicas] = {}
        self.alive: dict[int, tuple[asyncio.StreamWriter, dict[str, str]]] = {}
        """The connection and the last heartbeat of each live broker, by id. Tests have one broker name."""
        self.requests: list[tuple[int, dict[str, str], bytes]] = []
        self.is_leader = True
        self.notifies = True
        self.mute: set[Code] = set()
        """Requests of these codes take effect and get no answer."""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        self._connections.add(writer)
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                buffer += chunk
                while (end := frame.frame_end(buffer, 0, len(buffer))) is not None:
                    command = frame.decode(bytes(buffer), 0, end)
                    del buffer[:end]
                    self._answer(command, writer)
        self._connections.discard(writer)
        writer.transport.abort()
        for broker_id in [one for one, (owner, _) in self.alive.items() if owner is writer]:
            del self.alive[broker_id]
            self._lost(broker_id)

    def _answer(self, command: Command, writer: asyncio.StreamWriter) -> None:
        self.requests.append((command.code, dict(command.ext), bytes(command.body)))
        if command.code == Code.CONTROLLER_GET_METADATA_INFO:
            code, ext, body = ResponseCode.SUCCESS, {"isLeader": str(self.is_leader).lower(), "group": "g"}, b""
        elif command.code == Code.BROKER_HEARTBEAT:
            owner = self.alive.get(int(command.ext["brokerId"]), (writer, {}))[0]
            self.alive[int(command.ext["brokerId"])] = (owner, dict(command.ext))
            code, ext, body = ResponseCode.SUCCESS, {}, b""
        elif not self.is_leader:
            code, ext, body = ResponseCode.CONTROLLER_NOT_LEADER, {}, b""
        else:
            code, ext, body = self._handle(Code(command.code), command.ext, bytes(command.body))
        answer = Command(code=int(code), ext=ext, body=body, opaque=command.opaque, flag=frame.FLAG_RESPONSE)
        if not command.is_oneway and command.code not in self.mute:
            writer.write(frame.encode(answer))

    def _handle(self, code: Code, ext: dict[str, str], body: bytes) -> tuple[ResponseCode, dict[str, str], bytes]:
        match code:
            case Code.CONTROLLER_GET_NEXT_BROKER_ID:
                ids = self.sets.get(ext["brokerName"], Replicas()).addresses
                return ResponseCode.SUCCESS, {"nextBrokerId": str(max(ids, default=0) + 1)}, b""
            case Code.CONTROLLER_APPLY_BROKER_ID:
                return self._apply(ext), {}, b""
            case Code.CONTROLLER_REGISTER_BROKER:
                replicas = self.sets[ext["brokerName"]]
                replicas.addresses[int(ext["brokerId"])] = ext["brokerAddress"]
                found = self._master(replicas) if replicas.master in self.alive else {}
                return ResponseCode.SUCCESS, found, self._set(replicas)
            case Code.CONTROLLER_GET_REPLICA_INFO:
                replicas = self.sets[ext["brokerName"]]
                found = self._master(replicas)
                del found["syncStateSetEpoch"]
                return ResponseCode.SUCCESS, found, self._set(replicas)
            case Code.CONTROLLER_ELECT_MASTER:
                return self._elect(ext["brokerName"], int(ext["brokerId"]), ext["designateElect"] == "true")
            case Code.CONTROLLER_ALTER_SYNC_STATE_SET:
                return self._alter(ext, json.loads(body))
            case _:
                raise AssertionError(code)

    def _apply(self, ext: dict[str, str]) -> ResponseCode:
        replicas = self.sets.setdefault(ext["brokerName"], Replicas())
        broker_id, check_code = int(ext["appliedBrokerId"]), ext["registerCheckCode"]
        if replicas.check_codes.setdefault(broker_id, check_code) != check_code:
            return ResponseCode.CONTROLLER_BROKER_ID_INVALID
        replicas.addresses[broker_id] = check_code.split(";")[0]
        return ResponseCode.SUCCESS

    def _elect(self, name: str, asker: int, designated: bool) -> tuple[ResponseCode, dict[str, str], bytes]:
        replicas = self.sets[name]
        alive = [one for one in replicas.members if one in self.alive]
        if replicas.epoch == 0:
            chosen: int | None = asker
        elif replicas.master in alive and not designated:
            return ResponseCode.CONTROLLER_MASTER_STILL_EXIST, self._master(replicas), self._members(replicas)
        elif designated:
            chosen = asker if asker in alive else None
        else:
            chosen = max(alive, key=self._rank, default=None)
        if chosen is None:
            replicas.master = None if asker == -1 else replicas.master
            return ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, {}, b""
        replicas.master, replicas.members = chosen, [chosen]
        replicas.epoch, replicas.set_epoch = replicas.epoch + 1, replicas.set_epoch + 1
        if self.notifies:
            for address in replicas.addresses.values():
                task = asyncio.ensure_future(self._notify(address, self._master(replicas), self._set(replicas)))
                task.add_done_callback(lambda done: done.exception())
        return ResponseCode.SUCCESS, self._master(replicas), self._members(replicas)

    def _rank(self, broker_id: int) -> tuple[int, int]:
        beat = self.alive[broker_id][1]
        return int(beat["epoch"]), int(beat["maxOffset"])

    def _alter(self, ext: dict[str, str], asked: dict[str, Any]) -> tuple[ResponseCode, dict[str, str], bytes]:
        replicas, members = self.sets[ext["brokerName"]], asked["syncStateSet"]
        if sorted(members) == sorted(replicas.members):
            return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, {}, b""
        if replicas.master != int(ext["masterBrokerId"]):
            return ResponseCode.CONTROLLER_INVALID_MASTER, {}, b""
        if replicas.epoch != int(ext["masterEpoch"]):
            return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, {}, b""
        if replicas.set_epoch != asked["syncStateSetEpoch"]:
            return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, {}, b""
        if any(one not in self.alive for one in members):
            return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, {}, b""
        replicas.members, replicas.set_epoch = members, replicas.set_epoch + 1
        return ResponseCode.SUCCESS, {"newSyncStateSetEpoch": str(replicas.set_epoch)}, self._set(replicas)

    def elect(self, name: str, broker_id: int) -> None:
        """Elect one broker, as an administrator asks for."""
        self._elect(name, broker_id, designated=True)

    def _lost(self, broker_id: int) -> None:
        for name, replicas in self.sets.items():
            if replicas.master == broker_id and self.is_leader:
                self._elect(name, -1, designated=False)

    @staticmethod
    async def _notify(address: str, ext: dict[str, str], body: bytes) -> None:
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        command = Command(code=Code.NOTIFY_BROKER_ROLE_CHANGED, ext=ext, body=body, flag=frame.FLAG_ONEWAY)
        writer.write(frame.encode(command))
        await writer.drain()
        writer.close()

    @staticmethod
    def _master(replicas: Replicas) -> dict[str, str]:
        found = {"masterEpoch": str(replicas.epoch), "syncStateSetEpoch": str(replicas.set_epoch)}
        if replicas.master is not None:
            found["masterBrokerId"] = str(replicas.master)
            found["masterAddress"] = replicas.addresses[replicas.master]
        return found

    @staticmethod
    def _set(replicas: Replicas) -> bytes:
        return json.dumps({"syncStateSet": replicas.members, "syncStateSetEpoch": replicas.set_epoch}).encode()

    @staticmethod
    def _members(replicas: Replicas) -> bytes:
        """Return the body of an election, with Java's bare keys."""
        addresses = ",".join(f'{one}:"{address}"' for one, address in replicas.addresses.items())
        group = f'{{"brokerAddrs":{{{addresses}}},"brokerName":"b","cluster":"c"}}'
        return f'{{"brokerMemberGroup":{group},"syncStateSet":{json.dumps(replicas.members)}}}'.encode()
