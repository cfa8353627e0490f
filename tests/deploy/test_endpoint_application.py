"""Which deployments an application has: environments where one is named, the endpoint where it is asked
for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ray import serve
from ray.serve import Application

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.app import build_endpoint, build_run, build_sampler, endpoint_of, environment_deployment
from hora_rl.deploy.checks.run_checks import target_of


def served(tmp_path: Path, *more: dict[str, object]) -> str:
    """A Serve file of the demo with the endpoint on."""
    args = {
        **yaml.safe_load(Path("deploy/presets/tiny.yaml").read_text()),
        "serve": {"endpoint": True},
    }
    applications = [
        {"name": "hora", "import_path": "hora_rl.deploy.app:build", "route_prefix": "/", "args": args}
    ]
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({"applications": [*applications, *more]}))
    return str(file)


def test_an_endpoint_and_its_application_are_there_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no application has import_path:"):
        target_of(served(tmp_path))
    second: dict[str, object] = {"name": "endpoint", "import_path": "hora_rl.deploy.app:build_endpoint"}
    assert target_of(served(tmp_path, second)).config.serve.endpoint
    with pytest.raises(ConfigError, match=r"serve.endpoint is false, and an application serves the endpoint"):
        build_endpoint(load("tiny").model_dump(mode="json"))


@pytest.mark.parametrize("preset", ["tiny", "tiny-guess"])
def test_no_deployment_logs_its_calls(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run of weeks there are many millions."""
    monkeypatch.setenv("HORA_REDIS_URL", "redis://127.0.0.1:1")
    config = load(preset)
    built = (build_run(config, drain=False), build_sampler(config), endpoint_of(config))
    found = {d.name: d for root in built for d in deployments(root)}
    assert {"ingress", "coordinator", "generator", "verifier", "sampler", "endpoint"} <= set(found)
    assert not [d.name for d in found.values() if d.logging_config["enable_access_log"]]


def deployments(application: Application) -> Iterator[serve.Deployment]:
    bound = application._bound_deployment
    yield bound
    for argument in (*bound.init_args, *bound.init_kwargs.values()):
        if isinstance(argument, Application):
            yield from deployments(argument)


def test_environments_are_scaled_where_they_may_be() -> None:
    config = load("tiny-guess", ["environment.replicas=3"])
    fixed = environment_deployment(config.environment, config.rollout)
    assert fixed.num_replicas == 3
    assert fixed.max_ongoing_requests == 256, "as many as episodes: a request may be of a single one"
    config = load("tiny-guess", ["environment.max_replicas=5"])
    scaled = environment_deployment(config.environment, config.rollout)
    options = scaled._deployment_config.autoscaling_config
    assert (options.min_replicas, options.max_replicas, options.target_ongoing_requests) == (1, 5, 32)
