import os
import socket

import pytest

from common.errors import ConfigError
from common.load import from_args
from common.redis import connect
from deploy.launch.redis_server import RedisServer
from deploy.preflight import check
from deploy.preflight import machine as doctor_machine
from deploy.preflight import services as doctor_services
from deploy.preflight.check import memory_gib
from deploy.preflight.doctor import CHECKS, doctor, http_options, show
from learner import extensions


@pytest.fixture
def config(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"0" * 1024)

    def make(**sections):
        base = {
            "run": {"folder": str(tmp_path / "runs")},
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"path": "arithmetic"},
            "telemetry": {"http_port": 0},
        }
        return from_args(
            {k: {**base.get(k, {}), **sections.get(k, {})} for k in base.keys() | sections.keys()}
        )

    return make


def by_name(findings):
    return {f.what: f for f in findings}


def test_this_environment_holds_the_versions_that_are_pinned(config):
    found = by_name(doctor_machine.package_versions(config()))
    assert found["packages"].level == "ok", found


def test_two_vllms_at_once_would_stop_a_run(config, monkeypatch):
    real = doctor_machine._version
    monkeypatch.setattr(doctor_machine, "_version", lambda p: "0.32.0" if p.startswith("vllm") else real(p))
    found = by_name(doctor_machine.package_versions(config()))
    assert found["vLLM"].level == "fail"
    assert "never mix" in found["vLLM"].mend


def test_a_drifted_package_is_named_with_both_versions(config, monkeypatch):
    real = doctor_machine._version
    monkeypatch.setattr(doctor_machine, "_version", lambda p: "1.0" if p == "ray" else real(p))
    found = by_name(doctor_machine.package_versions(config()))
    assert "ray 1.0 (pinned" in found["packages"].says


def test_a_run_that_logs_to_wandb_needs_its_package_and_no_other_run_does(config, monkeypatch):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    assert "packages asked for" not in by_name(doctor_machine.package_versions(config()))
    found = by_name(doctor_machine.package_versions(config(learner={"wandb": "project"})))
    assert found["packages asked for"].level == "fail"
    assert "learner.wandb = project" in found["packages asked for"].says


def test_common_from_another_folder_is_found(config, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_machine.common, "__path__", [str(tmp_path / "common")])
    (finding,) = doctor_machine.import_origin(config())
    assert finding.level == "fail"
    assert str(tmp_path) in finding.says


def test_nccl_without_gpus_would_stop_a_run(config, monkeypatch):
    monkeypatch.setattr(doctor_machine, "gpus", list)
    found = by_name(doctor_machine.gpu_count(config(weights={"transport": "nccl"})))
    assert found["weights.transport"].level == "fail"


def test_too_few_gpus_are_counted_against_generators_and_learner(config, monkeypatch):
    monkeypatch.setattr(doctor_machine, "gpus", lambda: ["H200, 143771 MiB"])
    found = by_name(doctor_machine.gpu_count(config(generator={"replicas": 3}, learner={"workers": 2})))
    assert found["GPUs"].level == "warn"
    assert "wants 5" in found["GPUs"].says


def test_memory_is_counted_where_it_is_needed(config, monkeypatch):
    monkeypatch.setattr(check, "model_gib", lambda path: 10.0)
    settings = config(
        model={"dtype": "bfloat16"},
        generator={"replicas": 2, "kv_cache_gib": 5},
        learner={"workers": 3, "offload_optimizer": True},
        weights={"transport": "gloo"},
    )
    monkeypatch.setattr(check, "gpus", list)
    processes = 1.5 + 2 * 2.2
    assert memory_gib(settings) == pytest.approx(processes + 2 * (5 + 10) + 3 * (1 + 4 * 10))
    assert memory_gib(settings, train=False) == pytest.approx(processes + 2 * (5 + 10)), "no rank starts"
    monkeypatch.setattr(check, "gpus", lambda: ["H200, 143771 MiB"])
    sent, offloaded = 10, 60
    assert memory_gib(settings) == pytest.approx(processes + 3 * 1 + sent + offloaded)
    assert memory_gib(settings, train=False) == pytest.approx(processes)


def test_a_taken_port_and_an_open_address_are_named(config):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = by_name(doctor_machine.port(config(telemetry={"http_port": port, "http_host": "0.0.0.0"})))
    assert found["HTTP port"].level == "warn"
    assert str(port) in found["HTTP port"].says
    assert "everyone" in found["HTTP address"].says


def test_of_a_serve_file_its_own_address_is_judged_and_not_this_machine_s_memory(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(doctor_machine, "gpus", lambda: ["H200, 143771 MiB"])
    settings = config(generator={"replicas": 100_000}, queue={"url": "redis://127.0.0.1:1"})
    file = tmp_path / "serve.yaml"
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"http_options: {{host: 0.0.0.0, port: {port}}}\napplications: []\n")
        found = by_name(doctor(settings, http_options(str(file))))
    assert found["HTTP port"].level == "warn"
    assert f"0.0.0.0:{port}" in found["HTTP port"].says
    assert found["HTTP address"].says.startswith("http_options.host = 0.0.0.0")
    assert found["GPUs and memory"].says.startswith("not judged on this machine")
    assert not {"GPUs", "memory"} & found.keys()
    assert by_name(doctor(settings))["memory"].level == "fail", "one machine alone would have to hold it"


def test_what_is_no_serve_file_has_no_serve_address(tmp_path):
    assert http_options("tiny") is None
    (tmp_path / "mine.yaml").write_text("model: {path: m}\n")
    assert http_options(str(tmp_path / "mine.yaml")) is None
    (tmp_path / "serve.yaml").write_text("applications: []\n")
    assert http_options(str(tmp_path / "serve.yaml")) == ("0.0.0.0", 8000), "Serve's own defaults"
    (tmp_path / "serve.yaml").write_text("applications: []\nhttp_options: {port: much}\n")
    with pytest.raises(ConfigError, match=r"serve\.yaml: http_options"):
        http_options(str(tmp_path / "serve.yaml"))


def test_a_redis_that_is_away_is_a_finding_without_its_password(config):
    url = "redis://:s3cret@127.0.0.1:1/0"
    found = by_name(doctor_services.redis_server(config(queue={"url": url})))
    assert found["Redis"].level == "fail"
    assert "s3cret" not in found["Redis"].says


def test_a_redis_that_may_lose_what_it_was_told_is_a_warning(config, tmp_path):
    with RedisServer(tmp_path / "redis") as server:
        client = connect(server.url)

        def persistence():
            return by_name(doctor_services.redis_server(config(queue={"url": server.url})))[
                "Redis persistence"
            ]

        assert (persistence().level, persistence().says) == ("ok", "appendonly, appendfsync always")
        client.config_set("appendfsync", "everysec")
        assert (persistence().level, persistence().says.split(":")[0]) == ("warn", "appendfsync is everysec")
        client.config_set("appendonly", "no")
        assert persistence().says.startswith("appendonly is off")


def test_a_model_folder_without_weights_would_stop_a_run(config, tmp_path):
    (tmp_path / "model" / "model.safetensors").unlink()
    (finding,) = doctor_services.model(config())
    assert finding.level == "fail"


def test_checkpoints_that_do_not_fit_the_disk_are_found(config, monkeypatch):
    monkeypatch.setattr(doctor_machine, "model_gib", lambda path: 1e6)
    (finding,) = doctor_machine.disk(config())
    assert finding.level == "fail"
    assert "keep_checkpoints" in finding.mend


def test_the_lock_of_a_build_that_was_killed_is_named(config, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert [f.level for f in doctor_machine.build_lock(config())] == ["ok"]
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    left, own = doctor_machine.build_lock(config())
    assert (left.level, left.mend) == ("warn", f"rm {lock}")
    assert own.level == "ok"
    with extensions.owned(extensions.build_folder()):
        *_, own = doctor_machine.build_lock(config())
    assert f"process {os.getpid()}" in own.says


def test_every_finding_that_is_not_ok_says_how_to_mend_it_and_the_report_shows_it(config, capsys):
    findings = doctor(config(queue={"url": "redis://127.0.0.1:1"}))
    assert len(findings) >= len(CHECKS)
    assert all(f.mend for f in findings if f.level != "ok")
    assert show(findings) is False
    out = capsys.readouterr().out
    assert all(f.mend in out for f in findings if f.mend)
