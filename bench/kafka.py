"""One broker of Apache Kafka, and Kafka's own command-line tools.

The broker is one process in KRaft mode. It listens on loopback, and its folder is deleted with it.
"""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from bench.machine import Processor
from bench.targets import QUEUES, READY_DEADLINE_S, NotReady
from compat.apache.apache import HOST, free_port
from compat.apache.maven import MavenProject

PROJECT: Final = MavenProject(Path(__file__).parent / "kafka_server")
HEAP: Final = "1g"
"""The heap of Kafka's start script. The broker keeps no messages in it."""
BROKER_OPTIONS: Final = (
    f"-Xms{HEAP}", f"-Xmx{HEAP}", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""The options of Kafka's start script."""
TOOL_OPTIONS: Final = ("-Xmx512m",)
CLUSTER_ID: Final = "d2hlZWxtcS1pbi1iZW5jaA"
TOOL_DEADLINE_S: Final = 120.0
LEAST_PER_S: Final = 10_000
"""The lowest rate that a tool may have before it is ended."""
_POLL_S: Final = 0.1


class Consumed(NamedTuple):
    """A topic that Kafka's own consumer has read."""

    per_second: float
    processor_seconds: float


class KafkaBroker:
    """A broker in a new folder below `parent`."""

    name: ClassVar[str] = "Kafka"

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=self._parent))
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        port, controller_port = free_port(), free_port()
        self.address = f"{HOST}:{port}"
        config = self.home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings(controller_port).items()))
        self._run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(config))
        log_path = self.home / "broker.log"
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *BROKER_OPTIONS, "-cp", PROJECT.class_path(), "kafka.Kafka", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                process_group=0,  # a Ctrl-C goes to this process, which ends the broker
            )
        end_s = time.monotonic() + READY_DEADLINE_S
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > end_s:
                self._process.kill()
                self._process.wait()
                raise NotReady(f"Kafka does not listen; its log ends:\n{log_path.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)

    def _settings(self, controller_port: int) -> dict[str, object]:
        """Return the settings of the broker: its places, one replica of all topics, and else Kafka's defaults."""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.home / "data",
            "num.partitions": QUEUES,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }

    def processor(self) -> Processor:
        """Return a processor meter of the broker, which starts now."""
        return Processor(lambda: {self._process.pid: "broker"})

    def create_topic(self, topic: str) -> None:
        """Create a topic of four partitions. The tool waits until the broker accepts requests."""
        self._tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(QUEUES))

    def fill(self, topic: str, count: int, body_bytes: int) -> None:
        """Produce messages without compression, by Kafka's own producer with its default settings."""
        self._run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(body_bytes), "--throughput", "-1"),
            *("--bootstrap-server", self.address),
            deadline_s=_deadline_s(count),
        )

    def stored(self, topic: str) -> int:
        """Return the number of messages in the topic."""
        said = self._tool("GetOffsetShell", "--topic", topic)
        return sum(int(line.rpartition(":")[2]) for line in said.splitlines() if line.startswith(f"{topic}:"))

    def consume(self, topic: str, count: int) -> Consumed:
        """Read the topic by Kafka's own consumer. Its rate counts from its first fetch on.

        The processor time includes the start of its JVM. Raises RuntimeError if it reads another number of messages.
        """
        before = _children_seconds()
        words = ("--topic", topic, "--num-records", str(count), "--timeout", "60000")
        said = self._tool("ConsumerPerformance", *words, deadline_s=_deadline_s(count))
        used = _children_seconds() - before
        head, values = (line.split(", ") for line in said.splitlines()[-2:])
        found = dict(zip(head, values, strict=True))
        if int(found["data.consumed.in.nMsg"]) != count:
            raise RuntimeError(f"Kafka's consumer has read {found['data.consumed.in.nMsg']} of {count:,} messages")
        return Consumed(float(found["fetch.nMsg.sec"]), used)

    def _tool(self, name: str, *words: str, deadline_s: float = TOOL_DEADLINE_S) -> str:
        """Run a tool that asks the broker. Returns its output."""
        address = ("--bootstrap-server", self.address)
        return self._run(f"org.apache.kafka.tools.{name}", *address, *words, deadline_s=deadline_s)

    def _run(self, main_class: str, *words: str, deadline_s: float = TOOL_DEADLINE_S) -> str:
        """Run a main class of Kafka. Returns its output. Raises RuntimeError if it fails."""
        done = subprocess.run(
            ["java", *TOOL_OPTIONS, "-cp", PROJECT.class_path(), main_class, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.home,
            timeout=deadline_s,
        )
        if done.returncode:
            raise RuntimeError(f"{main_class} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _deadline_s(count: int) -> float:
    return TOOL_DEADLINE_S + count / LEAST_PER_S


def _children_seconds() -> float:
    """Return the processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
