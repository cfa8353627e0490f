"""What cannot be run without GPUs, Docker or Kubernetes is held against the schemas and names it must agree
with: Kubernetes' own files against the API server's (kubernetes-validate brings them), KubeRay's against its
own, of the oldest and the newest version that they are for; unknown keys are errors."""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import redis
import yaml
from ray.serve.schema import ServeDeploySchema

from hora_rl.common.config.base import Scope
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect, has_password
from hora_rl.common.live.telemetry import record_step
from hora_rl.common.load import differences, from_args, load
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.machine import enough_gpus
from hora_rl.deploy.machine.ray_start import free_port
from hora_rl.deploy.machine.redis_server import executable
from hora_rl.deploy.monitor.prometheus import COUNTERS, EXPORTED, GAUGES, counters, gauges
from hora_rl.deploy.monitor.reading import read_run
from tests.support.ports import wait_for_port
from tests.support.programs import run_well
from tests.support.synthetic_run import SyntheticRun, config_of, play

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVE_FILES = sorted(DEPLOY.glob("hora*.yaml"))


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("path", SERVE_FILES, ids=lambda p: p.name)
def test_every_serve_file_is_valid_for_serve_its_experiment_loads_and_its_page_is_on_loopback(path):
    raw = yaml.safe_load(path.read_text())
    serve = ServeDeploySchema.model_validate(raw)
    config = load(str(path))
    named = {d.name: d.num_replicas for d in serve.applications[0].deployments}
    assert named["generator"] == config.generator.replicas
    assert named["verifier"] == config.verifier.replicas
    assert serve.applications[0].name == "hora"
    assert config.queue.url
    assert not has_password(config.queue.url)
    assert config.queue.url.endswith("?password_file=~/hora-redis/password")  # of `hora redis ~/hora-redis`
    # Of eight machines each has a proxy, for the cluster's own with its login.
    assert serve.http_options.host == ("0.0.0.0" if path.name == "hora-64gpu.yaml" else "127.0.0.1")
    assert config.telemetry.http_host == load("tiny").telemetry.http_host == "127.0.0.1"
    if count := re.search(r"(\d+)gpu", path.name):
        gpus = config.generator.replicas * config.generator.gpus + config.learner.workers
        assert gpus == int(count[1]), "every one that it is named for"


def test_the_lines_for_one_gpu_are_what_one_gpu_needs(tmp_path):
    """A card that replica and learner share: without the lines the file asks for two."""
    text = (DEPLOY / "hora.yaml").read_text()
    assert "marks `one GPU`" in (DEPLOY / "compose.yaml").read_text()
    assert enough_gpus(Target(load(str(DEPLOY / "hora.yaml")), "train"), 1, "Ray has").level == "fail"
    lines = [line for line in text.splitlines() if line.lstrip().startswith("# one GPU: ")]
    assert len(lines) == 4
    file = tmp_path / "one.yaml"
    file.write_text("\n".join(line.replace("# one GPU: ", "") for line in text.splitlines()))
    ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    config = load(str(file))
    assert enough_gpus(Target(config, "train"), 1, "Ray has").level == "ok"
    assert config.generator.kv_cache_gib == 1, "measured at the start it would take the learner's memory"


def test_the_pods_ask_for_as_many_gpus_as_their_experiment():
    service = kubernetes("actors")[0]["spec"]
    experiment = yaml.safe_load(service["serveConfigV2"])["applications"][0]["args"]
    [group] = service["rayClusterConfig"]["workerGroupSpecs"]
    [worker] = group["template"]["spec"]["containers"]
    asked = experiment["generator"]["replicas"] * experiment["generator"]["gpus"]
    asked += experiment["learner"]["workers"]
    for kind in ("requests", "limits"):
        assert int(worker["resources"][kind]["nvidia.com/gpu"]) * group["replicas"] == asked


def test_compose_s_redis_gets_a_password_that_is_made_once_and_that_no_process_shows(tmp_path):
    """The two services' own commands, run here on folders in the place of their volumes."""
    services, port = documents("compose.yaml")[0]["services"], free_port()

    def command(name: str) -> list[str]:
        *shell, script = services[name]["command"]
        for old, new in (
            ("$$", "$"),
            ("/secrets", str(tmp_path)),
            ("chown 999:1000", "true"),
            ("dir /data", f"dir {tmp_path}\nbind 127.0.0.1\nport {port}"),
        ):
            script = script.replace(old, new)
        return [*shell, script]

    subprocess.run(command("password"), check=True)
    password = (tmp_path / "redis").read_text()
    assert re.fullmatch("[0-9a-f]{48}", password)
    assert stat.S_IMODE((tmp_path / "redis").stat().st_mode) == 0o440
    subprocess.run(command("password"), check=True)
    assert (tmp_path / "redis").read_text() == password
    (tmp_path / "redis-server").symlink_to(executable())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    url = services["actors"]["environment"]["HORA_REDIS_URL"]
    url = url.replace("redis:6379", f"127.0.0.1:{port}").replace("/secrets", str(tmp_path))
    with served(command("redis"), environment, port) as pid:
        assert_kept(connect(url), port, pid, password)


@contextmanager
def served(command: list[str], environment: dict[str, str], port: int) -> Iterator[int]:
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for_port(port)
            yield server.pid
        finally:
            server.terminate()


def assert_kept(client: redis.Redis, port: int, pid: int, password: str) -> None:
    """Redis writes every change to disk, drops nothing, and only those with the password reach it."""
    assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with pytest.raises(RunError, match="refuses the password"):
        connect(f"redis://127.0.0.1:{port}")
    assert password not in Path(f"/proc/{pid}/cmdline").read_text()


def test_the_cluster_s_redis_gets_its_password_where_no_process_shows_it(tmp_path):
    """The container's own command, run here with the server of this machine in the place of the image's."""
    stateful, *_ = (d for d in kubernetes("redis") if d["kind"] == "StatefulSet")
    container = stateful["spec"]["template"]["spec"]["containers"][0]
    port, password = free_port(), "a0" * 24
    (tmp_path / "redis-server").symlink_to(executable())
    script = container["args"][0].replace("dir /data", f"dir {tmp_path}\nbind 127.0.0.1\nport {port}")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": password}
    with served([*container["command"], script], environment, port) as pid:
        assert_kept(connect(f"redis://:{password}@127.0.0.1:{port}"), port, pid, password)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bray_hora_[a-z_]+", expression))


def test_every_name_that_can_be_exported_is_and_no_other(redis_url):
    run = SyntheticRun(redis_url, config_of("exported"))
    play(run, 2)
    of_source = {"source/sums/groups": 8.0, "source/sums/reward": 0.5}
    newest = {k: v for k, v in read_run(run.redis, "exported").learner.items() if isinstance(v, int | float)}
    record_step(run.redis, "exported", {**newest, **of_source})
    state = read_run(run.redis, "exported")
    seen = {(name, *tags) for name, tags, _ in gauges(state)}
    assert seen == {(name, *tags) for name, (_, tags) in GAUGES.items()}
    counted = {(name, *tags) for name, tags, _ in counters(state)}
    assert counted == {(name, *tags) for name, (_, tags) in COUNTERS.items()}


LACKING = "no promtool on PATH (Debian: apt-get install prometheus)"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=LACKING)


def promtool(*arguments: str) -> str:
    """What it says; fails with that where it is not content."""
    return run_well("promtool", *arguments).stdout


@needs_promtool
def test_prometheus_itself_accepts_rules_and_every_dashboard_expression(tmp_path):
    for name in ("alerts.yaml", "prometheus.yaml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yaml"))
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "alerts.yaml"))
    dashboard = json.loads((DEPLOY / "grafana" / "hora.json").read_text())
    expressions = [t["expr"].replace("$run", ".*") for p in dashboard["panels"] for t in p["targets"]]
    rules = [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "panels.yaml"))


@needs_promtool
def test_the_alerts_speak_up_when_they_should_and_only_then():
    promtool("test", "rules", str(Path(__file__).with_name("alerts.test.yaml")))


def test_compose_publishes_on_loopback_alone_and_names_only_what_it_has():
    compose = documents("compose.yaml")[0]
    services = compose["services"]
    assert all(p.startswith("127.0.0.1:") for s in services.values() for p in s.get("ports", []))
    assert {v.partition(":")[0] for s in services.values() for v in s["volumes"]} == compose["volumes"].keys()
    for name, described in services.items():
        assert set(described.get("depends_on", {})) <= services.keys() - {name}


def test_dashboard_and_alerts_ask_for_exported_names_alone():
    panels = json.loads((DEPLOY / "grafana" / "hora.json").read_text())["panels"]
    asked = set().union(*(names_in(t["expr"]) for p in panels for t in p["targets"]))
    assert asked == EXPORTED, asked ^ EXPORTED
    (group,) = documents("prometheus/alerts.yaml")[0]["groups"]
    for rule in group["rules"]:
        asked = names_in(rule["expr"])
        assert asked, rule
        assert asked <= EXPORTED, rule


OLDEST, NEWEST = "1.29.0", "1.37.0"
CRDS = Path(__file__).parent / "kuberay"  # KubeRay's own schemas
PLURAL = {"RayService": "rayservices", "RayJob": "rayjobs"}


def kubernetes(name: str) -> list[dict]:
    return documents(f"kubernetes/{name}.yaml")


def validate(document: dict, version: str) -> None:
    """Raises ValidationError of jsonschema or kubernetes_validate for what the API server would refuse or
    ignore."""
    if document["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(document, version, strict=True)
        return
    kuberay = _schema(document["kind"], "1.5.1" if version == OLDEST else "1.7.0")
    jsonschema.Draft7Validator(kuberay).validate(document)
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
    kubernetes_validate.validate(named, version, strict=True)  # the names of metadata are Kubernetes' own
    for pod in pods(document):
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate({**template, "template": pod}, version, strict=True)


@cache
def _schema(kind: str, version: str) -> dict[str, Any]:
    """The CRD of KubeRay `version`, which allows no unknown key, wherever it is."""
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


NAMED = ((name, d) for name in ("redis", "actors", "learner") for d in kubernetes(name))
ALL_PODS = {f"{name}-{d['kind']}-{i}": pod for name, d in NAMED for i, pod in enumerate(pods(d))}
OBJECTS = ("network", "redis", "runs", "actors", "learner")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", OBJECTS)
def test_the_api_server_would_take_every_object_and_ignore_no_key(name, version):
    for document in kubernetes(name):
        validate(document, version)


def test_every_mount_has_its_volume_and_every_claim_its_name():
    actors = kubernetes("actors")[0]
    claims = {d["metadata"]["name"] for d in kubernetes("runs")}
    for template in pods(actors):
        pod = template["spec"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == volumes.keys()
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] in claims


def test_the_cluster_serves_the_experiment_that_its_learner_would_accept_with_the_pinned_ray():
    spec = kubernetes("actors")[0]["spec"]
    serve = yaml.safe_load(spec["serveConfigV2"])
    served = ServeDeploySchema.model_validate(serve)
    # KubeRay's own probe of a worker asks its proxy: localhost:8000/-/healthz.
    assert (served.proxy_location, served.http_options.port) == ("EveryNode", 8000)
    entrypoint = kubernetes("learner")[0]["spec"]["entrypoint"].split()
    learner = load(str(DEPLOY / Path(entrypoint[2]).name), [entrypoint[entrypoint.index("--set") + 1]])
    actors = from_args(serve["applications"][0]["args"])
    assert differences(actors, learner, below=Scope.PART) == []
    assert actors.run.folder == learner.run.folder == "/runs"
    cluster = spec["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert f"ray=={cluster['rayVersion']}\n" in (DEPLOY.parent / "requirements" / "cpu.txt").read_text()


@pytest.mark.parametrize("pod", ALL_PODS.values(), ids=ALL_PODS)
def test_no_pod_is_root_or_may_become_it_or_writes_outside_its_volumes_or_shows_a_secret(pod):
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    hardened = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    for container in spec["containers"]:
        assert container["securityContext"] == {**hardened, "capabilities": {"drop": ["ALL"]}}
        assert "/tmp" in {m["mountPath"] for m in container["volumeMounts"]}
        words = [*container.get("command", []), *container.get("args", [])]
        assert not any("$(" in word for word in words), "arguments are seen by everyone"


def test_every_pod_has_a_network_policy_and_redis_takes_hora_s_alone():
    policies = {d["metadata"]["name"]: d for d in kubernetes("network")}
    for name, pod in ALL_PODS.items():
        policy = policies["hora-redis" if name.startswith("redis") else "hora"]
        selected = policy["spec"]["podSelector"]["matchLabels"].items()
        assert selected <= pod["metadata"]["labels"].items(), name
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"], name
    hora = policies["hora"]["spec"]["podSelector"]
    (rule,) = policies["hora-redis"]["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": hora}], "ports": [{"protocol": "TCP", "port": 6379}]}
    assert policies["hora-redis"]["spec"]["egress"] == []
    assert all(rule.get("from") for rule in policies["hora"]["spec"]["ingress"])  # nobody comes from anywhere
    reached = [to for rule in policies["hora"]["spec"]["egress"] for to in rule["to"]]
    assert {"podSelector": policies["hora-redis"]["spec"]["podSelector"]} in reached
