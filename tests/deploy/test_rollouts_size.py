"""The size of RUN/rollouts is said before a run, and is no less than what is written."""

from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.common.rollout_files import files_of
from hora_rl.deploy.checks.disk import expected_gib, rollouts
from hora_rl.deploy.checks.findings import Target
from tests.support.groups import rollout
from tests.support.rollouts import tokenizer, write_rollouts


@pytest.mark.parametrize("logprobs", ["false", "true"])
def test_the_size_that_is_said_is_not_exceeded(tmp_path: Path, logprobs: str) -> None:
    setting = f"telemetry.rollouts_logprobs={logprobs}"
    text = tokenizer().encode("<think>7+8+0=15,3+5+1=9</think><answer>95</answer>" * 2)

    def draw(step: int, prompt: int) -> list:
        shifted = [text[(i * (prompt + 3)) % len(text)] for i in range(64)]
        return [rollout(shifted, logprobs=-0.1 * (1 + i + prompt), version=step) for i in range(8)]

    write_rollouts(tmp_path, setting, steps=2, prompts=10, draw=draw)
    written = sum(path.stat().st_size for path in files_of(tmp_path).values())
    sizes = ["learner.steps=2", "rollout.prompts_per_batch=10", "rollout.group_size=8", "rollout.shards=1"]
    config = load("tiny", [setting, *sizes, "rollout.pre_rollouts=2", "rollout.max_response_tokens=64"])
    assert written < expected_gib(config) * 2**30


def test_check_says_it_of_what_trains() -> None:
    (finding,) = rollouts(Target(load("tiny")))
    assert (finding.level, finding.what) == ("ok", "rollouts")
    assert list(rollouts(Target(load("tiny"), "eval"))) == []
    assert expected_gib(load("qwen2.5-7b", ["telemetry.rollouts_gib=0.5"])) == 0.5
