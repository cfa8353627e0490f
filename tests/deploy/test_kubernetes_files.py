"""The Kubernetes files against the API server's own schemas (kubernetes-validate brings them), KubeRay's against its Go
types: the fields used here, any other being an error. Their pod templates are checked as Kubernetes' own."""

import copy
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from common.load import differences, from_args, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OLDEST, NEWEST = "1.29.0", "1.37.0"
STRING, INTEGER = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
TEMPLATE = {"type": "object", "required": ["spec"]}


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text()))


def closed(required: list[str], **properties) -> dict:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


GROUP = {"rayStartParams": PARAMETERS, "template": TEMPLATE}
WORKERS = closed(
    ["groupName", "minReplicas", "maxReplicas", *GROUP],
    groupName=STRING,
    replicas=INTEGER,
    minReplicas=INTEGER,
    maxReplicas=INTEGER,
    **GROUP,
)
CLUSTER = closed(
    ["rayVersion", "headGroupSpec", "workerGroupSpecs"],
    rayVersion=STRING,
    authOptions=closed(["mode"], mode={"enum": ["disabled", "token"]}),
    headGroupSpec=closed(list(GROUP), **GROUP),
    workerGroupSpecs={"type": "array", "items": WORKERS, "minItems": 1},
)
KUBERAY = {
    "RayService": closed(
        ["serveConfigV2", "rayClusterConfig"],
        serveConfigV2=STRING,
        upgradeStrategy=closed(["type"], type={"enum": ["None", "NewCluster"]}),
        rayClusterConfig=CLUSTER,
    ),
    "RayJob": closed(
        ["entrypoint", "clusterSelector"],
        entrypoint=STRING,
        clusterSelector=PARAMETERS,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        backoffLimit=INTEGER,
        shutdownAfterJobFinishes={"type": "boolean"},
    ),
}


def validate(document: dict, version: str) -> None:
    """Raises ValidationError of jsonschema or kubernetes_validate for what the API server would refuse or ignore."""
    if document["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(document, version, strict=True)
        return
    meta = closed(["name"], name={**STRING, "pattern": "^[a-z0-9-]+$"}, labels=PARAMETERS)
    kind = document["kind"]
    whole = {"apiVersion": STRING, "kind": STRING, "metadata": meta, "spec": KUBERAY[kind]}
    jsonschema.validate(document, closed(list(whole), **whole))
    for group in groups(document) if kind == "RayService" else ():
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate({**template, "template": group["template"]}, version, strict=True)


def groups(service: dict) -> list[dict]:
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


OBJECTS = {
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


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_misspelt_key_anywhere_would_be_seen(version):
    service, (job,) = documents("actors")[0], documents("learner")

    def broken(document: dict, *path) -> dict:
        found = inner = copy.deepcopy(document)
        for key in path:
            inner = inner[key]
        inner["misspelt"] = {}
        return found

    pod = ("template", "spec", "containers", 0)
    cases = [
        *(broken(document) for name in OBJECTS for document in documents(name)),
        broken(documents("redis")[1], "spec", *pod),
        broken(documents("runs")[0], "spec"),
        broken(service, "spec", "rayClusterConfig", "headGroupSpec"),
        broken(service, "spec", "rayClusterConfig", "headGroupSpec", *pod, "resources"),
        broken(service, "spec", "rayClusterConfig", "workerGroupSpecs", 0, *pod, "volumeMounts", 0),
        broken(job, "spec"),
    ]
    for case in cases:
        with pytest.raises(
            (jsonschema.ValidationError, kubernetes_validate.ValidationError), match="misspelt"
        ):
            validate(case, version)


def test_a_worker_has_the_proxy_that_kuberay_asks_whether_it_is_ready():
    # KubeRay's own probe of a RayService's worker: localhost:8000/-/healthz, unless the pod brings another.
    spec = documents("actors")[0]["spec"]
    serve = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    assert serve.proxy_location == "EveryNode"
    assert (serve.http_options.host, serve.http_options.port) == ("0.0.0.0", 8000)
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert all("readinessProbe" not in c for c in workers["template"]["spec"]["containers"])


def test_nobody_without_the_clusters_token_starts_jobs_on_it():
    assert documents("actors")[0]["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_every_mount_has_its_volume_and_every_claim_and_secret_one_name():
    actors = documents("actors")[0]["spec"]["rayClusterConfig"]
    claims = {d["metadata"]["name"] for d in documents("runs")}
    for group in (actors["headGroupSpec"], *actors["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == volumes.keys()
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] in claims
    redis, *_ = (d for d in documents("redis") if d["kind"] == "StatefulSet")
    assert redis["spec"]["serviceName"] == "hora-redis"
    assert "always" in redis["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"@{redis['metadata']['name']}:6379" in json.dumps(actors)


def test_the_cluster_s_experiment_is_the_eight_gpu_file_s_and_the_learner_would_accept_it():
    from deploy.launch.cluster import LOCAL

    serve = yaml.safe_load(documents("actors")[0]["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(serve)
    entrypoint = documents("learner")[0]["spec"]["entrypoint"].split()
    assert entrypoint[:2] == ["hora", "train"]
    learner = load(str(DEPLOY / Path(entrypoint[2]).name), [entrypoint[entrypoint.index("--set") + 1]])
    actors = from_args(serve["applications"][0]["args"])
    assert [d for d in differences(actors, learner) if not d.startswith(LOCAL)] == []
    assert actors.run.folder == learner.run.folder == "/runs"


def test_the_cluster_s_ray_is_the_pinned_one():
    version = documents("actors")[0]["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"ray=={version}\n" in (DEPLOY.parent / "requirements" / "cpu.txt").read_text()
