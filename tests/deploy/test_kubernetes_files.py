"""The Kubernetes files against the API server's own schemas (kubernetes-validate brings them), KubeRay's
against its own, of the oldest and the newest version that they are for; unknown keys are errors. Pod
templates are checked as Kubernetes' own too."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from hora_rl.common.load import differences, from_args, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OLDEST, NEWEST = "1.29.0", "1.37.0"
CRDS = Path(__file__).parent / "kuberay"  # KubeRay's own schemas
PLURAL = {"RayService": "rayservices", "RayJob": "rayjobs"}


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text()))


def validate(document: dict, version: str) -> None:
    """Raises ValidationError of jsonschema or kubernetes_validate for what the API server would refuse or
    ignore."""
    if document["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(document, version, strict=True)
        return
    validate_kuberay(document, "1.5.1" if version == OLDEST else "1.7.0")
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
    kubernetes_validate.validate(named, version, strict=True)  # the names of metadata are Kubernetes' own
    for pod in pods(document):
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate({**template, "template": pod}, version, strict=True)


def validate_kuberay(document: dict[str, Any], version: str) -> None:
    """Raises jsonschema's ValidationError for an object that the CRD of KubeRay `version` does not describe;
    unknown keys included, wherever they are."""
    jsonschema.Draft7Validator(_schema(document["kind"], version)).validate(document)


@cache
def _schema(kind: str, version: str) -> dict[str, Any]:
    path = CRDS / f"{PLURAL[kind]}-{version}.json.gz"
    schema: dict[str, Any] = _strict(json.loads(gzip.decompress(path.read_bytes())))
    meta = schema["properties"]["metadata"]  # the API server's own, checked beside this
    meta.pop("additionalProperties", None)
    return schema


def _strict(node: Any) -> Any:
    """OpenAPI as JSON schema, where an object with properties has no others."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    # Names of fields are no keywords: a field may be called `type` or `items`.
    found = {
        key: {name: _strict(each) for name, each in value.items()} if key == "properties" else _strict(value)
        for key, value in node.items()
    }
    if node.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    open_ended = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if node.get("type") == "object" and "properties" in node and not open_ended:
        found["additionalProperties"] = False
    return found


def pods(document: dict) -> list[dict]:
    """The templates of every pod that comes of an object."""
    spec = document["spec"]
    if document["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        return [g["template"] for g in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    return [spec[key] for key in ("template", "submitterPodTemplate") if key in spec]


ALL_PODS = {
    f"{name}-{d['kind']}-{i}": pod
    for name in ("redis", "actors", "learner")
    for d in documents(name)
    for i, pod in enumerate(pods(d))
}
OBJECTS = {
    "network": [("NetworkPolicy", "hora-redis"), ("NetworkPolicy", "hora")],
    "redis": [("Service", "hora-redis"), ("StatefulSet", "hora-redis")],
    "runs": [("PersistentVolumeClaim", "hora-runs")],
    "actors": [("RayService", "hora")],
    "learner": [("RayJob", "hora-learner")],
}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", OBJECTS)
def test_the_api_server_would_take_every_object_and_ignore_no_key(name, version):
    found = documents(name)
    assert [(d["kind"], d["metadata"]["name"]) for d in found] == OBJECTS[name]
    for document in found:
        validate(document, version)


def test_a_worker_has_the_proxy_that_kuberay_asks_whether_it_is_ready():
    # KubeRay's own probe of a RayService's worker: localhost:8000/-/healthz, unless the pod brings another.
    spec = documents("actors")[0]["spec"]
    serve = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    assert serve.proxy_location == "EveryNode"
    assert (serve.http_options.host, serve.http_options.port) == ("0.0.0.0", 8000)
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert all("readinessProbe" not in c for c in workers["template"]["spec"]["containers"])


def test_every_mount_has_its_volume_and_every_claim_and_secret_one_name():
    actors = documents("actors")[0]
    claims = {d["metadata"]["name"] for d in documents("runs")}
    for template in pods(actors):
        pod = template["spec"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == volumes.keys()
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] in claims
    redis, *_ = (d for d in documents("redis") if d["kind"] == "StatefulSet")
    assert redis["spec"]["serviceName"] == "hora-redis"
    assert f"@{redis['metadata']['name']}:6379" in json.dumps(actors)


def test_the_cluster_s_experiment_is_the_eight_gpu_file_s_and_the_learner_would_accept_it():
    from hora_rl.common.config.base import Scope

    serve = yaml.safe_load(documents("actors")[0]["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(serve)
    entrypoint = documents("learner")[0]["spec"]["entrypoint"].split()
    assert entrypoint[:2] == ["hora", "train"]
    learner = load(str(DEPLOY / Path(entrypoint[2]).name), [entrypoint[entrypoint.index("--set") + 1]])
    actors = from_args(serve["applications"][0]["args"])
    assert differences(actors, learner, below=Scope.PART) == []
    assert actors.run.folder == learner.run.folder == "/runs"


def test_the_cluster_s_ray_is_the_pinned_one_and_takes_jobs_with_its_token_alone():
    cluster = documents("actors")[0]["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert f"ray=={cluster['rayVersion']}\n" in (DEPLOY.parent / "requirements" / "cpu.txt").read_text()


@pytest.mark.parametrize("pod", ALL_PODS.values(), ids=ALL_PODS)
def test_no_pod_is_root_or_may_become_it_or_writes_outside_its_volumes_or_shows_a_secret(pod):
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in {m["mountPath"] for m in container["volumeMounts"]}
        words = [*container.get("command", []), *container.get("args", [])]
        assert not any("$(" in word for word in words), "arguments are seen by everyone"


def selected(policy: dict, pod: dict) -> bool:
    return policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_every_pod_has_a_network_policy_and_redis_takes_hora_s_alone():
    policies = {d["metadata"]["name"]: d for d in documents("network")}
    for name, pod in ALL_PODS.items():
        policy = policies["hora-redis" if name.startswith("redis") else "hora"]
        assert selected(policy, pod), name
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    hora = policies["hora"]["spec"]["podSelector"]
    (rule,) = policies["hora-redis"]["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": hora}], "ports": [{"protocol": "TCP", "port": 6379}]}
    assert policies["hora-redis"]["spec"]["egress"] == []
    assert all(rule.get("from") for rule in policies["hora"]["spec"]["ingress"])  # nobody comes from anywhere
    reached = [to for rule in policies["hora"]["spec"]["egress"] for to in rule["to"]]
    assert {"podSelector": policies["hora-redis"]["spec"]["podSelector"]} in reached
