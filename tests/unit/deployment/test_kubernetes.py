"""The manifests of deploy/kubernetes: by Kubernetes' own schemas, and what has to fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[3] / "deploy" / "kubernetes"
FILES = sorted(file for file in ROOT.rglob("*.yaml") if file.name != "kustomization.yaml")
DOCUMENTS = [document for file in FILES for document in yaml.safe_load_all(file.read_text())]
WORKLOADS = [document for document in DOCUMENTS if document["kind"] in ("StatefulSet", "Deployment")]


def name_of(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


def test_every_file_is_listed_once() -> None:
    for listing in ROOT.rglob("kustomization.yaml"):
        listed = yaml.safe_load(listing.read_text())["resources"]
        assert sorted(listed) == [file.name for file in FILES if file.parent == listing.parent]


@pytest.mark.parametrize("document", WORKLOADS, ids=name_of)
def test_a_pod_can_do_no_more_than_it_needs(document: dict[str, Any]) -> None:
    pod = pod_of(document)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("document", WORKLOADS, ids=name_of)
def test_a_drain_ends_before_the_pod_is_killed(document: dict[str, Any]) -> None:
    pod = pod_of(document)
    (container,) = pod["containers"]
    (limit,) = [float(one.partition("=")[2]) for one in container["args"] if one.startswith("--drain-limit=")]
    probe = container["livenessProbe"]
    assert limit + 12 < pod["terminationGracePeriodSeconds"] <= probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize("document", WORKLOADS, ids=name_of)
def test_mounts_ports_and_labels_fit_together(document: dict[str, Any]) -> None:
    pod = pod_of(document)
    (container,) = pod["containers"]
    claimed = [claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())]
    volumes = [*claimed, *(volume["name"] for volume in pod["volumes"])]
    assert sorted(mount["name"] for mount in container["volumeMounts"]) == sorted(volumes)
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert document["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"] for port in container["ports"]}
    services = [one for one in DOCUMENTS if one["kind"] == "Service" and one["spec"]["selector"] == labels]
    assert [{port["targetPort"] for port in one["spec"]["ports"]} for one in services] == [ports]


def test_gateways_ask_for_the_engines_service() -> None:
    service = next(one for one in DOCUMENTS if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None")
    gateway = next(one for one in WORKLOADS if one["kind"] == "Deployment")
    assert f"--engines-dns={service['metadata']['name']}:7071" in pod_of(gateway)["containers"][0]["args"]
    engine = next(one for one in WORKLOADS if one["kind"] == "StatefulSet")
    assert engine["spec"]["serviceName"] == service["metadata"]["name"]


def test_budgets_and_scalers_name_what_is_there() -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in WORKLOADS]
    budgets = [one for one in DOCUMENTS if one["kind"] == "PodDisruptionBudget"]
    assert sorted(str(one["spec"]["selector"]["matchLabels"]) for one in budgets) == sorted(map(str, labels))
    (scaler,) = [one for one in DOCUMENTS if one["kind"] == "HorizontalPodAutoscaler"]
    target = scaler["spec"]["scaleTargetRef"]
    assert {"kind": target["kind"], "name": target["name"]} in [
        {"kind": one["kind"], "name": one["metadata"]["name"]} for one in WORKLOADS
    ]
