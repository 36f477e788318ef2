"""The shell of a broker whose master a controller elects: it registers, sends heartbeats, and asks for decisions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from wheelmq.broker.parts import Parts
from wheelmq.broker.replication.controller import requests
from wheelmq.broker.replication.controller.controllers import Controllers
from wheelmq.broker.replication.controller.elections import ControllerDecision, Effect, Elections
from wheelmq.broker.replication.controller.identity import BrokerIdentity
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.controller import NextBrokerId
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import HeaderError
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Pause after a failed request, and between two requests for an election."""
RENOUNCE_S: Final = 0.3
"""Time for the controllers to notice that the connections of this broker are closed."""
CHECK_S: Final = 0.02
"""Time between two checks of the replicas in sync by a master."""
RETRY_SET_S: Final = 0.1
"""Pause after a change of the set that the controller did not make. Clients wait for it."""
REFUSED: Final = (ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)
"""Answers after which the controller certainly has the known set. After others, an earlier request may be in force."""


class ControllerClient:
    """Keeps a broker registered at its controller, and in the role that the controller chose."""

    def __init__(
        self,
        parts: Parts,
        elections: Elections,
        on_decided: Callable[[], None],
        on_changed: Callable[[], None],
        step_down: Callable[[], None],
    ) -> None:
        """Create the object.

        `on_decided` is called when the broker follows or leads, and `on_changed` when answers may be waiting.
        `step_down` ends the life of a master.
        """
        self._parts = parts
        self._elections = elections
        self._on_decided, self._on_changed, self._step_down = on_decided, on_changed, step_down
        self._settings, self._node = parts.settings.controller, parts.settings.broker
        tls = client_tls(parts.settings.tls.outgoing_options())
        self._controllers = Controllers(self._settings.addresses, parts.sign, tls)
        self._identity = BrokerIdentity(parts.disk, parts.paths, self._node.cluster, self._node.name)
        self._log = RateLimitedLog(log, parts.clock.monotonic)
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._beats = True
        """Whether the broker sends heartbeats. Without them, another broker is elected."""

    def start(self) -> None:
        self._elections.listen(self._wanted.set)
        self._tasks.append(asyncio.create_task(self._run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._controllers.close()

    def ask_soon(self) -> None:
        """Ask for the present master soon, because the known one does not answer."""
        self._wanted.set()

    # The main loop -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not await self._try(self._get_id):
            await asyncio.sleep(RETRY_S)
        self._tasks += [asyncio.create_task(self._beat(address)) for address in self._controllers.addresses]
        self._tasks.append(asyncio.create_task(self._keep_set()))
        while not await self._try(self._register):
            await asyncio.sleep(RETRY_S)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_ms / 1000):
                    await self._wanted.wait()
            self._wanted.clear()
            if not await self._try(self._ask_again):
                self._wanted.set()
                await asyncio.sleep(RETRY_S)

    async def _try(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Run a step. A failure is logged. Returns whether it succeeded and needs no repetition."""
        try:
            return await step()
        except (CallError, Refused, HeaderError, BodyError, OSError) as error:
            self._log.warn("failed", "the controller cannot be asked now: %s", error)
        except Exception:
            self._log.exception("failed", "a request to the controller failed")
        return False

    async def _get_id(self) -> bool:
        """Take the id of this store, or apply for one. Raises CallError, Refused, HeaderError, OSError."""
        own_id = self._identity.load()
        if own_id is None:
            own_id = await self._apply()
            log.info("the controller assigned the id %d to this broker", own_id)
        self._elections.take_id(own_id)
        return True

    async def _apply(self) -> int:
        names = self._node.cluster, self._node.name
        application = self._identity.application()
        if application is None:
            answer = await self._ask(requests.next_id(*names))
            found = headers.read(answer.ext, NextBrokerId).next_broker_id
            application = self._identity.apply(found, self._node.address, self._parts.clock.now_ms())
        try:
            await self._ask(requests.apply_for_id(*names, *application))
        except Refused as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                self._identity.withdraw()  # another broker was faster
            raise
        self._identity.accept(application.broker_id)
        return application.broker_id

    async def _register(self) -> bool:
        """Register, and take the role that the controller chose. Returns whether there is a master."""
        command = requests.register(
            self._node.cluster,
            self._node.name,
            self._elections.own_id,
            self._node.address,
            self._parts.clock.now_ms(),
        )
        return await self._take(requests.decision_in(await self._ask(command)))

    async def _ask_again(self) -> bool:
        """Ask for the present master. Returns whether there is one."""
        return await self._take(requests.decision_in(await self._ask(requests.replica_info(self._node.name))))

    async def _take(self, decision: ControllerDecision) -> bool:
        """Take the role that the controller chose. Without a master, ask it to elect one. Returns whether there is one.

        A broker that was elected before its start closes its connections first: then the controller elects again.
        """
        effect = self._effect(decision)
        if effect is Effect.NEEDS_ELECTION:
            if decision.master_id == self._elections.own_id:
                await self._renounce()
            effect = self._effect(await self._elect())
        return effect is not Effect.NEEDS_ELECTION

    def _effect(self, decision: ControllerDecision) -> Effect:
        effect = self._elections.take(decision)
        if effect in (Effect.FOLLOWS, Effect.LEADS):
            self._on_decided()
        if effect is Effect.STEPS_DOWN:
            self._beats = False
            self._step_down()
        self._on_changed()
        return effect

    async def _elect(self) -> ControllerDecision:
        """Ask for an election. Returns the master, or NO_MASTER. Raises CallError, Refused."""
        own_id, now_ms = self._elections.own_id, self._parts.clock.now_ms()
        await self._controllers.send_to_leader(self._heartbeat())
        answer = await self._controllers.ask(requests.elect(self._node.cluster, self._node.name, own_id, now_ms))
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            return requests.decision_in(answer)
        if answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            self._log.warn(
                "no master",
                "the controller elects no master: no broker that has all acknowledged messages is alive. Start the "
                "other brokers",
            )
            return requests.NO_MASTER
        raise Refused(answer)

    async def _renounce(self) -> None:
        """Let the controllers forget this broker for a moment."""
        self._beats = False
        await self._controllers.reconnect()
        await asyncio.sleep(RENOUNCE_S)
        self._beats = True

    async def _ask(self, command: Command) -> Command:
        answer = await self._controllers.ask(command)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer

    # Heartbeats and the replicas in sync ---------------------------------------------------------------------------

    def _heartbeat(self) -> Command:
        parts, last = self._parts, self._parts.epochs.last
        return requests.heartbeat(
            self._node.cluster,
            self._node.name,
            self._node.address,
            self._elections.own_id,
            epoch=-1 if last is None else last.number,
            log_end=parts.store.log.end,
            confirmed=parts.replicas.confirmed,
            timeout_ms=self._settings.heartbeat_timeout_ms,
            priority=self._settings.election_priority,
        )

    async def _beat(self, address: str) -> None:
        """Send heartbeats to one controller."""
        while True:
            if self._beats and self._parts.health.failure is None:
                try:
                    await self._controllers.send(address, self._heartbeat())
                except (CallError, Refused) as error:
                    self._log.warn(address, "no heartbeat reached the controller at %s: %s", address, error)
                    self._wanted.set()  # this broker may have been replaced meanwhile
            await asyncio.sleep(self._settings.heartbeat_ms / 1000)

    async def _keep_set(self) -> None:
        """Keep the replicas in sync at the controller right, as long as this broker is the master."""
        membership = self._elections.membership
        while True:
            await asyncio.sleep(CHECK_S)
            wanted = membership.wanted() if self._parts.role.is_master else None
            if wanted is not None and not await self._try(partial(self._alter, wanted)):
                await asyncio.sleep(RETRY_SET_S)

    async def _alter(self, members: frozenset[int]) -> bool:
        """Ask the controller to store the replicas in sync. Returns whether it did. Raises CallError, BodyError."""
        elections, membership = self._elections, self._elections.membership
        term = elections.term
        membership.request(members)
        answer = await self._controllers.ask(
            requests.alter(
                self._node.name,
                elections.own_id,
                term,
                members,
                elections.set_epoch,
                self._parts.clock.now_ms(),
            )
        )
        if term != elections.term:
            return False
        if answer.code != ResponseCode.SUCCESS:
            if answer.code in REFUSED:
                membership.reject()
            self._wanted.set()
            self._on_changed()
            raise Refused(answer)
        found = requests.set_in(answer)
        epoch = found.sync_state_set_epoch
        membership.take(frozenset(found.sync_state_set), -1 if epoch is None else epoch)
        self._on_changed()
        return True
