"""A setting that cannot be, or cannot stand with another, is refused in one line: key, value and reason."""

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from hora_rl.common.config.base import Section
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load

KEYS = [
    ("rolout={}", "rolout: unknown key; did you mean rollout?"),
    (
        "learner.checkpoint_aside=true",
        "learner.checkpoint_aside: unknown key; did you mean async_checkpoint?",
    ),
    ("learner.lora.rnak=8", "learner.lora.rnak: unknown key; did you mean rank?"),
    ("model={}", "model.path: is required"),
    ("rollout.pre_rollouts=32", "rollout.pre_rollouts (32) must be smaller than rollout.group_size (16)"),
    ("rollout.temperature=0", "rollout.temperature (0): Input should be greater than 0"),
    ("learner.zero_stage=4", "learner.zero_stage (4): Input should be 0, 1, 2 or 3"),
    ("weights.transport=ipc", "weights.transport ('ipc'): Input should be 'file', 'gloo' or"),
    ("queue.capacity=10", "queue.capacity (10) must be at least"),
    ("reward.success=acuracy", "'acuracy'"),
    ("reward.answer='boxed '", "'boxed '"),
    ("environment={path: guess, max_replicas: 2, replicas: 3}", "environment.max_replicas (2) must be at"),
]
EVALUATION = [
    ("learner.keep_best=pass@16", "learner.keep_best (pass@16) compares evaluations during training:"),
    ("evaluation.every=5 learner.keep_best=pass@3", "learner.keep_best (pass@3) is not measured:"),
    ("evaluation.every=5 evaluation.path=null", "evaluation.every (5) needs held-out problems"),
]
CODE_TESTS = [
    (f"reward.code_tests.{limit}", f"reward.code_tests.{limit.partition('=')[0]}")
    for limit in ("seconds=0", "seconds=601", "memory_mib=8", f"output_bytes={2**40}", "files=3", "cores=2")
]
NOT_FINITE = [
    (setting, "a finite number")
    for setting in (
        "reward.weights={accuracy: .nan}",
        "learner.optimizer.learning_rate=inf",
        "reward.success_at=-.inf",
        "learner.optimizer.betas=[0.9, .nan]",
        "data={sources: {a: {path: arithmetic, weight: .inf}}}",
        "environment.verifiers={taskset: t, config: {rate: [.nan]}}",
    )
]
LORA = [
    ("rank=600", "learner.lora.rank (600) exceeds 512, the largest rank that vLLM"),
    ("dropout=0.1", "learner.lora.dropout: unknown key"),
    (
        "rank=16 alpha=24 model.dtype=bfloat16",
        "learner.lora.rank = 24/16 = 1.5 is not a power of two",
    ),
    ("rank=8 weights.transport=nccl", "weights.transport (nccl) cannot send the adapter"),
    ("rank=8 generator.clear_cache=false", "generator.clear_cache (false) with"),
]
SLEEP = [
    ("rollout.max_staleness=2", "rollout.max_staleness (2)"),
    ("learner.workers=2", "learner.workers is 2"),
    ("generator.replicas=3", "generator.replicas 3 · generator.tensor_parallel 1 need 3"),
    ("generator.tensor_parallel=2", "generator.tensor_parallel 2 need 2"),
    ("generator.clear_cache=false", "generator.clear_cache (false)"),
    ("weights.transport=nccl", "weights.transport (nccl)"),
]
OBJECTIVE = [
    ("advantage=maxrl", "learner.objective.advantage (maxrl): none of grpo"),
    ("advantage=pass_at_k", "learner.objective.k (None) belongs to advantage pass_at_k or pkpo"),
    ("k=4", "learner.objective.advantage is grpo: remove k"),
    ("advantage=pkpo k=1", "learner.objective.k (1): pkpo takes its baseline"),
    ("advantage=pass_at_k k=5", "learner.objective.k (5) exceeds the smallest group of rule"),
    ("baseline=wald", "learner.objective.baseline (wald) belongs to advantage likelihood"),
    ("advantage=rloo scale=batch", "learner.objective.scale (batch) belongs to advantage"),
    ("multi_objective_aggregation=normalize_then_sum scale=group", "(normalize_then_sum)"),
    ("aggregate=token advantage=dr_grpo", "learner.objective.aggregate (token) divides by"),
    ("aggregate=token normalisation=constant", "learner.objective.normalisation (constant)"),
    ("aggregate=token advantage=likelihood", "has another divisor: use aggregate group"),
    ("clip_dual=1.1", "learner.objective.clip_dual (1.1) belongs to loss clip and must exceed 1 +"),
    ("clip_dual=3.0 loss=sapo", "learner.objective.loss is sapo"),
    ("overlong_cache=100", "learner.objective.overlong_cache (100) belongs to overlong soft"),
    ("overlong=soft overlong_cache=4096", "learner.objective.overlong_cache (4096) must be at"),
    ("group_weight=as_if", "learner.objective.group_weight.as_if (None) names the rule of kind"),
    ("group_weight.lo=4.0", "learner.objective.group_weight.lo (4.0) exceeds"),
    ("group_weight=size", "learner.objective.group_weight.kind"),
    ("group_weight.as_if=hit_utility", "learner.objective.group_weight.as_if (hit_utility)"),
    ("phase_weight=unbiased", "learner.objective.phase_weight (unbiased) needs advantage rloo"),
    ("lambda=0", "learner.objective.lambda (0): Input should be greater than 0"),
]
UNBIASED = [
    ("allocation.rule=hard_first", "needs a Phase B of every prompt, and rule hard_first"),
    ("allocation.stop=hit allocation.rounds=4", "rule hit_utility with stop hit"),
    ("allocation.budget=tokens", "budget tokens leaves some without"),
    ("allocation.rounds=4", "needs sizes that depend only on Phase A, not allocation.rounds 4"),
    ("rollout.pre_rollouts=1", "rollout.pre_rollouts is 1: use at least 2"),
]


def named(settings: str, section: str = "") -> list[str]:
    """The settings, those without a section in `section`."""
    sections = ("model.", "weights.", "generator.", "rollout.", "learner.", "allocation.")
    return [one if one.startswith(sections) else section + one for one in settings.split()]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        *(([setting], line) for setting, line in (*KEYS, *CODE_TESTS, *NOT_FINITE)),
        *((settings.split(), line) for settings, line in EVALUATION),
        *((named(one, "learner.lora."), line) for one, line in LORA),
        *((["rollout.max_staleness=0", "generator.sleep=step", one], line) for one, line in SLEEP),
        *((named(one, "learner.objective."), line) for one, line in OBJECTIVE),
        *(
            (named(f"advantage=rloo phase_weight=unbiased {one}", "learner.objective."), line)
            for one, line in UNBIASED
        ),
    ],
)
def test_each_mistake_is_one_line_with_key_value_and_reason(settings: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", settings)
    assert str(caught.value).startswith("tiny: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_mistakes_are_several_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", ["rollout.a=1", "learner.steps=0"])
    assert len(str(caught.value).splitlines()) == 2


def sections(of: type[BaseModel] = Section) -> Iterator[type[BaseModel]]:
    for section in of.__subclasses__():
        yield section
        yield from sections(section)


def test_no_setting_is_of_a_kind_that_takes_any_number() -> None:
    """`Any` and `object` are not looked into; `JsonValue` is."""
    free = [
        f"{section.__name__}.{name}"
        for section in sections()
        for name, field in section.model_fields.items()
        if re.search(r"\b(Any|object)\b", str(field.annotation))
    ]
    assert free == []


@pytest.mark.parametrize(
    "settings",
    [
        "generator.sleep=step rollout.max_staleness=0",
        "advantage=pkpo k=16 allocation.rule=uniform",  # uniform sampling makes no group smaller than G
        "advantage=rloo phase_weight=unbiased",
        "learner.lora.rank=16 learner.lora.alpha=24",  # float32 rounds nothing
    ],
)
def test_what_can_stand_together_is_accepted(settings: str) -> None:
    load("tiny", named(settings, "learner.objective."))
