"""Keys of earlier versions of the configuration."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from hora_rl.common.errors import ConfigError


class Gone(NamedTuple):
    """A key without a successor: what holds now, and the values that say the same."""

    now: str
    same: tuple[object, ...]


_ENDPOINT = {
    "endpoint": False,
    "max_sequences": 16,
    "max_samples": 8,
    "max_body_kib": 1024,
    "requests_per_minute": 600,
    "cpus": 0.25,
}
_DIFFICULTY = "difficulty is clamp(√(0.12/p̂), 0.7, 3)"
GONE = {
    "serve": Gone("`vllm serve RUN/model` serves a checkpoint", (_ENDPOINT,)),
    "evaluation.pin": Gone(
        "all replicas sample an evaluation, and its result names their versions", (True, False)
    ),
    "queue.dead_letters": Gone("the last 10,000 are kept", (10_000,)),
    "telemetry.stall_s": Gone("five minutes without a step are a stall", (300.0,)),
    "telemetry.rollouts_logprobs": Gone("telemetry.rollouts: logprobs keeps them", (False,)),
    "queue.capacity": Gone("producers wait at (max_staleness + 2)·Γ untrained groups", (None,)),
    "queue.max_group_bytes": Gone("a message of more than 256 MiB is refused", (256 * 2**20,)),
    "coordinator.lease_s": Gone("a coordinator silent for 30 s loses its shards", (30.0,)),
    "coordinator.cpus": Gone("Ray reserves 0.25 CPUs", (0.25,)),
    "generator.max_requests": Gone("a replica accepts max_sequences requests, at least 256", (256,)),
    "environment.cpus": Gone("Ray reserves 0.25 CPUs per replica", (0.25,)),
    "environment.episodes": Gone("a replica plays 256 episodes at a time", (256,)),
    "environment.attempts": Gone("an episode is tried five times", (5,)),
    "environment.max_replicas": Gone(
        "autoscaling_config under `deployments:` of a Serve file adds replicas", (None,)
    ),
    "allocation.budget": Gone("a batch has Γ·G rollouts", ("rollouts",)),
    "allocation.alpha": Gone("`prior: fixed(ALPHA0, BETA0)` has both numbers", (1.0,)),
    "allocation.beta": Gone("`prior: fixed(ALPHA0, BETA0)` has both numbers", (1.0,)),
    "evaluation.source": Gone("held-out problems are as those of the first of data.sources", (None,)),
    "evaluation.top_p": Gone("evaluation.truncation holds it", (1.0,)),
    "evaluation.top_k": Gone("evaluation.truncation holds it", (0,)),
    "evaluation.min_p": Gone("evaluation.truncation holds it", (0.0,)),
    "reward.wait_limit_s": Gone("an unavailable reward is retried for ten minutes", (600.0,)),
    "reward.max_answer_chars": Gone("an answer of more than 2,000 characters is wrong", (2000,)),
    "reward.code_tests.output_bytes": Gone("a program that writes more than 1 MiB is wrong", (2**20,)),
    "reward.code_tests.files": Gone("a program may have 64 files open", (64,)),
    "reward.code_tests.tests_field": Gone("reward.code_tests.columns names it", ("tests",)),
    "reward.code_tests.entry_field": Gone("reward.code_tests.columns names it", ("entry_point",)),
    "reward.code_tests.solution_field": Gone("reward.code_tests.columns names it", ("solution",)),
    "learner.max_dead_in_a_row": Gone("ten unusable groups in a row stop the run", (10,)),
    "learner.max_bad_losses": Gone("three steps without a finite loss stop the run", (3,)),
    "learner.objective.sapo_temperature_pos": Gone("it is the paper's, 1", (1.0,)),
    "learner.objective.sapo_temperature_neg": Gone("it is the paper's, 1.05", (1.05,)),
    "learner.objective.group_weight.tau": Gone(_DIFFICULTY, (0.12,)),
    "learner.objective.group_weight.gamma": Gone(_DIFFICULTY, (0.5,)),
    "learner.objective.group_weight.lo": Gone(_DIFFICULTY, (0.7,)),
    "learner.objective.group_weight.hi": Gone(_DIFFICULTY, (3.0,)),
    "learner.objective.scale": Gone(
        "grpo divides by its group's deviation; dr_grpo does not", (None, "group")
    ),
    "learner.objective.multi_objective_aggregation": Gone(
        "weighted rewards are added before they are normalised", ("sum_then_normalize",)
    ),
    "learner.objective.lambda": Gone(
        "a hit's advantage under weighted_reinforce is the paper's, 0.1", (0.1,)
    ),
    "learner.objective.phase_weight": Gone(
        "both phases are one group; likelihood is exact under every allocation", ("pooled",)
    ),
    "learner.objective.aggregate": Gone(
        "`normalisation: token` stands for `aggregate: token` and its `normalisation: none`", ("group",)
    ),
    "learner.objective.overlong_cache": Gone(
        "the soft penalty grows over the last fifth of max_response_tokens", (None,)
    ),
    "learner.objective.ratio": Gone("`loss: gspo` takes one ratio for a completion", ("token",)),
    "learner.objective.clip_dual": Gone("clip_low and clip_high are the bounds", (None,)),
    "learner.objective.kl_estimator": Gone("it is k3", ("k3",)),
    "learner.objective.entropy_coef": Gone("a loss has no entropy bonus; entropy is a metric", (0.0,)),
    "learner.objective.top_entropy_quantile": Gone("every trained token is in the loss", (1.0,)),
    "learner.attention": Gone("it is sdpa where the model's class has it, else eager", ("sdpa",)),
    "learner.kernels": Gone("the learner compiles its layers on a card", ("torch",)),
}
"""Keys of earlier versions. A `reward` key is also one of `data.sources.NAME.reward`."""


def without_gone(args: Mapping[str, Any], source: str = "arguments") -> dict[str, Any]:
    """`args` without the keys of earlier versions whose value says what holds now, as in the config.yaml of
    an older run. Raises ConfigError with one line per other value."""
    kept: dict[str, Any] = copy.deepcopy(dict(args))
    data = kept.get("data")
    sources = data.get("sources") if isinstance(data, dict) else None
    of_sources = [f"data.sources.{name}." for name in sources] if isinstance(sources, dict) else []
    refused = []
    for key, gone in GONE.items():
        for prefix in ("", *(of_sources if key.startswith("reward.") else ())):
            *path, last = f"{prefix}{key}".split(".")
            section: Any = kept
            for name in path:
                section = section.get(name) if isinstance(section, dict) else None
            if not isinstance(section, dict) or last not in section:
                continue
            value = section.pop(last)
            if not any(_same(value, same) for same in gone.same):
                refused.append(f"{source}: {prefix}{key}: this key is gone: {gone.now}; remove it")
    if refused:
        raise ConfigError("\n".join(refused))
    return kept


def _same(value: object, same: object) -> bool:
    """Whether `value` is `same`, or a section with no key that differs from it."""
    if isinstance(value, dict) and isinstance(same, dict):
        return all(key in same and same[key] == item for key, item in value.items())
    return value == same
