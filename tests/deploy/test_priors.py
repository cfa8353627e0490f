"""Learned priors from a run's records: features by a real model, fitted, saved, loaded by the run that uses
them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.prompt_features import features_of, prior_of
from hora_rl.common.config import AllocationConfig, Config, RunConfig
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import check_paths, dump_yaml, load
from hora_rl.common.types import Prompt
from hora_rl.deploy.fit_prior import app, fit


def own(config: Config) -> tuple[AllocationConfig, RunConfig, str]:
    return config.allocation, config.run, config.model.path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Records in which short problems are solved and long ones are not."""
    folder = tmp_path / "1000"
    folder.mkdir()
    config = load("tiny", [f"run.folder={tmp_path}", "run.name='1000'", "data.limit=200"])
    (folder / "config.yaml").write_text(dump_yaml(config))
    prompts = render_prompts(config, load_tokenizer(config.model.path))
    rng = np.random.default_rng(0)
    with (folder / "groups.jsonl").open("w") as file:
        for p in prompts:
            c = int(rng.binomial(8, 0.9 if len(p.tokens) < 10 else 0.1))
            prior = {"prior": "fixed", "prior_alpha": 1.0, "prior_beta": 1.0}
            record = {"prompt_index": p.index, "successes": c, "trials": 8, "batch": p.index // 20}
            file.write(json.dumps(record | prior) + "\n")
    return folder


@pytest.mark.parametrize("name", ["hidden-static", "hidden-dual"])
def test_a_prior_fitted_on_a_run_tells_its_easy_prompts_from_its_hard_ones(run: Path, name: str) -> None:
    path = run / "state.npz"
    words = [str(run), "--name", name, "--out", str(path)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    overrides = [f"allocation.prior={name}", f"allocation.prior_state={path}"]
    config = load(str(run / "config.yaml"), overrides)
    prompts = render_prompts(config, load_tokenizer(config.model.path))
    alpha, beta = prior_of(*own(config), prompts).predict(np.arange(len(prompts)))
    rate, short = alpha / (alpha + beta), np.array([len(p.tokens) < 10 for p in prompts])
    assert rate[short].mean() > 0.7
    assert rate[~short].mean() < 0.3


def test_features_of_other_models_or_prompts_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def embedded(model: str, texts: list[str]) -> np.ndarray:
        return np.array([[len(model), len(text)] for text in texts], dtype=np.float32)

    monkeypatch.setattr("hora_rl.actors.coordinator.prompt_features.sentence_features", embedded)
    overrides = [f"run.folder={tmp_path}", "run.name=r", "allocation.prior=gp"]
    prompts = [Prompt(i, "problem " * i, "1", np.array([1], np.int32)) for i in range(3)]
    for model, given in [("one", prompts), ("another", prompts), ("another", prompts[1:])]:
        config = load("tiny", [*overrides, f"allocation.features={model}"])
        expected = embedded(model, [p.text for p in given])
        np.testing.assert_array_equal(features_of(*own(config), given), expected)


def test_coordinators_that_start_together_compute_the_features_once_and_a_damaged_file_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def embedded(model: str, texts: list[str]) -> np.ndarray:
        computed.append(model)
        time.sleep(0.5)
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    monkeypatch.setattr("hora_rl.actors.coordinator.prompt_features.sentence_features", embedded)
    overrides = [f"run.folder={tmp_path}", "run.name=r", "allocation.prior=gp", "allocation.features=one"]
    config = load("tiny", overrides)
    prompts = [Prompt(i, "problem " * i, "1", np.array([1], np.int32)) for i in range(3)]
    with ThreadPoolExecutor(2) as coordinators:
        first, second = coordinators.map(lambda _: features_of(*own(config), prompts), range(2))
    np.testing.assert_array_equal(first, second)
    assert len(computed) == 1
    for damaged in (b"", b"PK\x03\x04 and no end"):
        (tmp_path / "r" / "features-text.npz").write_bytes(damaged)
        np.testing.assert_array_equal(features_of(*own(config), prompts), first)
    assert len(computed) == 3


def test_what_cannot_be_fitted_is_one_line(run: Path) -> None:
    with pytest.raises(ConfigError, match="fixed"):
        fit(run, "fixed", None, None)
    with pytest.raises(ConfigError, match="--features"):
        fit(run, "gp", None, None)
    (run / "groups.jsonl").write_text("")
    with pytest.raises(RunError, match=r"groups\.jsonl"):
        fit(run, "hidden-static", None, None)


def test_a_state_that_is_not_the_priors_own_is_one_line(run: Path) -> None:
    path = fit(run, "hidden-static", None, None)
    for state, reason in [
        (path, "holds the state of hidden-static, not of hidden-dual"),
        (run / "config.yaml", "pickled"),
        (run / "absent.npz", "No such file"),
    ]:
        overrides = ["allocation.prior=hidden-dual", f"allocation.prior_state={state}"]
        config = load(str(run / "config.yaml"), overrides)
        prompts = render_prompts(config, load_tokenizer(config.model.path))
        with pytest.raises(ConfigError, match=f"allocation.prior_state={state}: .*{reason}"):
            prior_of(*own(config), prompts)


def test_a_missing_feature_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may run in another folder than `hora`."""
    (tmp_path / "embedder").mkdir()
    monkeypatch.chdir(tmp_path)
    overrides = [f"run.folder={tmp_path}", "run.name=r", "allocation.prior=gp"]
    for written, known in [("./embedder", str(tmp_path / "embedder")), ("org/name", "org/name")]:
        config = load("tiny", [*overrides, f"allocation.features={written}"])
        assert config.allocation.features == known
        check_paths(config)
    config = load("tiny", [*overrides, "allocation.features=./none"])
    with pytest.raises(ConfigError, match=r"allocation\.features \(.*none\): no such file or folder"):
        check_paths(config)
    prompts = [Prompt(0, "1+1=?", "2", np.array([1], np.int32))]
    with pytest.raises(ConfigError, match=r"allocation\.prior=gp: no features of .*none: OSError: .*"):
        prior_of(*own(config), prompts)
