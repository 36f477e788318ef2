"""The manifests for Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.files import (
    BROKER_PORTS,
    DEPLOY,
    METRICS_PORT,
    NAMESRV_PORT,
    documents,
    manifests,
    parsed,
    settings_in,
    with_variables,
)
from wheelmq.formats.wire.signature import AccessKey

OBJECTS = {f"{document['kind']}/{document['metadata']['name']}": document for _, document in manifests()}
VERSIONS = ("1.30", kubernetes_validate.latest_version())
WORKLOADS = {name: found for name, found in OBJECTS.items() if found["kind"] in ("StatefulSet", "Deployment")}
POD = {"POD_NAME": "wheelmq-broker-0", "POD_NAMESPACE": "wheelmq"}


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of settings that the pods mount."""
    [(name, text)] = OBJECTS["ConfigMap/wheelmq-settings"]["data"].items()
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_the_form_of_its_kind(name: str, version: str) -> None:
    kubernetes_validate.validate(OBJECTS[name], version, strict=True)


def test_the_kustomization_lists_every_file() -> None:
    [found] = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert sorted(found["resources"]) == sorted({name for name, _ in manifests()})


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_command_its_settings_and_its_ports_exist(name: str, config: Path) -> None:
    container = container_of(WORKLOADS[name])
    command, options = parsed([with_variables(word, POD) for word in container["args"]])
    ports = {one["name"]: one["containerPort"] for one in container.get("ports", ())}
    if command == "pipeline":
        assert ports == {}
        return
    settings = settings_in(command, options, config)
    if command == "nameserver":
        assert list(ports.values()) == [NAMESRV_PORT] == [settings.nameserver.listen_port]
        assert settings.nameserver.listen_host == "0.0.0.0"
    else:
        assert list(ports.values()) == [*BROKER_PORTS, METRICS_PORT]
        assert settings.metrics.exporter == "PROM" and settings.metrics.prom_port == METRICS_PORT
    assert str(options["file"]).startswith("/etc/wheelmq/")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/wheelmq", str(options["home"])} <= mounts


def test_a_broker_advertises_the_name_that_its_service_gives_it(config: Path) -> None:
    workload = WORKLOADS["StatefulSet/wheelmq-broker"]
    command, options = parsed([with_variables(word, POD) for word in container_of(workload)["args"]])
    node = settings_in(command, options, config).broker
    service = workload["spec"]["serviceName"]
    assert node.address == f"{POD['POD_NAME']}.{service}.{POD['POD_NAMESPACE']}.svc.cluster.local:{node.listen_port}"
    assert node.name == POD["POD_NAME"] and node.listen_host == "0.0.0.0"
    assert {one["name"] for one in container_of(workload)["env"]} > set(POD)
    assert workload["metadata"]["namespace"] == POD["POD_NAMESPACE"]
    assert OBJECTS[f"Service/{service}"]["spec"]["publishNotReadyAddresses"]


def test_brokers_and_pipeline_name_the_name_servers(config: Path) -> None:
    namesrv = WORKLOADS["StatefulSet/wheelmq-namesrv"]
    name, service = namesrv["metadata"]["name"], namesrv["spec"]["serviceName"]
    wanted = [f"{name}-{i}.{service}:{NAMESRV_PORT}" for i in range(namesrv["spec"]["replicas"])]
    words = [with_variables(word, POD) for word in container_of(WORKLOADS["StatefulSet/wheelmq-broker"])["args"]]
    assert list(settings_in(*parsed(words), config).broker.namesrv) == wanted
    _, options = parsed(container_of(WORKLOADS["Deployment/wheelmq-pipeline"])["args"])
    assert options["namesrv"].split(";") == wanted


def test_brokers_and_pipeline_share_an_access_key(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = container_of(WORKLOADS["StatefulSet/wheelmq-broker"])
    [variable] = [one for one in workload["env"] if one["name"].startswith("WHEELMQ_")]
    monkeypatch.setenv(variable["name"], with_variables(variable["value"], {"PIPELINE_SECRET": "a-long-random-text"}))
    auth = settings_in(*parsed([with_variables(word, POD) for word in workload["args"]]), config).auth
    pipeline = {one["name"]: one for one in container_of(WORKLOADS["Deployment/wheelmq-pipeline"])["env"]}
    assert auth.allow_unauthenticated
    assert auth.inner_access_key == AccessKey(pipeline["WHEELMQ_ACCESS_KEY"]["value"], "a-long-random-text")
    [secret] = [one["valueFrom"] for one in workload["env"] if one["name"] == "PIPELINE_SECRET"]
    assert secret == pipeline["WHEELMQ_SECRET_KEY"]["valueFrom"]


@pytest.mark.parametrize("name", [name for name, found in OBJECTS.items() if "selector" in found.get("spec", {})])
def test_a_selector_finds_a_pod(name: str) -> None:
    selector = OBJECTS[name]["spec"]["selector"]
    wanted = selector.get("matchLabels", selector).items()
    pods = [workload["spec"]["template"]["metadata"]["labels"] for workload in WORKLOADS.values()]
    assert any(wanted <= labels.items() for labels in pods)


@pytest.mark.parametrize("name", WORKLOADS)
def test_probes_name_ports_of_their_container(name: str) -> None:
    container = container_of(WORKLOADS[name])
    ports = {one["name"] for one in container.get("ports", ())}
    probes = [container[key] for key in container if key.endswith("Probe")]
    assert {probe["tcpSocket"]["port"] for probe in probes} <= ports
    assert bool(probes) == bool(ports)


def test_the_network_policy_opens_ports_that_exist() -> None:
    rules = OBJECTS["NetworkPolicy/wheelmq"]["spec"]["ingress"]
    opened = {one["port"] for rule in rules for one in rule.get("ports", ())}
    assert opened == {NAMESRV_PORT, METRICS_PORT, *BROKER_PORTS[:2]}
