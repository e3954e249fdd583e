"""The manifests for Kubernetes: complete, restricted, and in agreement with the program."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.documents import ROOT
from tuner.settings import check_variables

FOLDER = ROOT / "deploy" / "kubernetes"


def manifests(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of the files that a kustomization names."""
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    texts = [(folder / name).read_text() for name in names]
    return [item for text in texts for item in yaml.safe_load_all(text)]


def kinds(kind: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of a kind."""
    return [item for item in manifests(folder) if item["kind"] == kind]


def pods() -> list[Any]:
    """Return the pod specifications of everything that runs."""
    owners = [*kinds("Deployment"), *kinds("Job", FOLDER / "upgrade")]
    return [pytest.param(o["spec"]["template"]["spec"], id=o["metadata"]["name"]) for o in owners]


def deployment(name: str) -> dict[str, Any]:
    """Return the container of a deployment."""
    (owner,) = [o for o in kinds("Deployment") if o["metadata"]["name"] == name]
    (container,) = owner["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("pod", pods())
def test_pods_keep_the_restricted_standard(pod: dict[str, Any]) -> None:
    """No root, no capabilities, no token of the cluster, no writable image."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001  # as in the images
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for kind in ("requests", "limits"):
            assert set(container["resources"][kind]) == {"cpu", "memory"}
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}


def test_the_worker_has_cores_of_its_own() -> None:
    """A quota that is not a whole number of cores suspends processes during a measurement."""
    resources = deployment("worker")["resources"]

    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdecimal()


def test_probes_ask_what_the_program_answers() -> None:
    """Readiness is that of the database; liveness does not depend on it."""
    api, worker = deployment("api"), deployment("worker")

    assert api["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert api["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    for probe in ("startupProbe", "livenessProbe"):
        command = worker[probe]["exec"]["command"]
        assert command[-1] == "tuner.service.alive"
        assert str(command[-1]) + '"]' in (ROOT / "docker" / "worker.Dockerfile").read_text()


def test_settings_are_known_and_names_resolve(caplog: pytest.LogCaptureFixture) -> None:
    """Config maps, secrets and claims that pods name are made, or documented."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    (config,) = kustomization["configMapGenerator"]
    names = {literal.partition("=")[0] for literal in config["literals"]}
    document = (ROOT / "docs" / "kubernetes.md").read_text()

    check_variables(dict.fromkeys(names, ""))
    assert caplog.text == ""
    assert {claim["metadata"]["name"] for claim in kinds("PersistentVolumeClaim")} == {"data"}
    for name in ("api", "worker"):
        sources = deployment(name)["envFrom"]
        assert sources[0] == {"configMapRef": {"name": config["name"]}}
        assert f"create secret generic {sources[1]['secretRef']['name']}" in document
    images = {image["name"] for image in kustomization["images"]}
    assert images == {deployment("api")["image"], deployment("worker")["image"]}


def test_only_the_api_is_reached_and_only_the_database_is_left_for() -> None:
    """Everything is denied first; ingress is to the API alone, egress to DNS and PostgreSQL."""
    policies = {item["metadata"]["name"]: item["spec"] for item in kinds("NetworkPolicy")}
    ports = [port["port"] for rule in policies["database"]["egress"] for port in rule["ports"]]

    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [name for name, spec in policies.items() if "ingress" in spec] == ["api"]
    selected = {"matchLabels": {"app.kubernetes.io/component": "api"}}
    assert policies["api"]["podSelector"] == selected
    assert set(ports) == {53, 5432}


def test_an_upgrade_is_a_job_of_its_own() -> None:
    """The job runs the only command that upgrades the schema, once, with the image of the API."""
    (job,) = kinds("Job", FOLDER / "upgrade")
    (container,) = job["spec"]["template"]["spec"]["containers"]

    assert container["command"] == ["tuner", "db", "upgrade"]
    assert container["image"] == deployment("api")["image"]
    assert job["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "upgrade"])
def test_kustomize_accepts_the_folder(folder: Path) -> None:
    """It renders every object with the name, namespace and image of the deployment."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    rendered = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert rendered.returncode == 0, rendered.stderr
    items = list(yaml.safe_load_all(rendered.stdout))

    assert len(items) >= len(manifests(folder))
    assert "image: registry.example.com/subgraph-tuner-api:" in rendered.stdout
