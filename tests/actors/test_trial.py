"""A problem that is tried is sampled as the run samples and judged as it judges, or the answer says why it is
not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from actors.calls import verifier_calls
from actors.endpoint.deployment import TRIES, hasty
from actors.endpoint.trial import Trial
from actors.verifier.pool import VerifierPool
from common.answers import TAGS
from common.config import Config
from common.load import load
from common.types import Completion, Prompt, Scored
from tests.support.chat_model import TURN_END, chat_tokenizer
from tests.support.tried import SAYS, TOKENIZER, complete, score

PROBLEM = {"problem": "37+58=?", "answer": "95"}


def tried(raw: object, config: Config | None = None, scoring: Any = score) -> tuple[int, Any, list[Any]]:
    """Status, body, and what was asked of the policy."""
    asked: list[Any] = []

    async def sampled(body: dict[str, Any]) -> Any:
        asked.append(body)
        return await complete(body)

    trial = Trial(config or load("tiny"), TOKENIZER, sampled, scoring)
    response = asyncio.run(trial.answer(raw))
    return response.status_code, json.loads(bytes(response.body)), asked


def test_it_is_sampled_as_the_run_samples() -> None:
    config = load("tiny", ["rollout.temperature=0.7"])
    _, found, (asked,) = tried({**PROBLEM, "min_weight_version": 2}, config)
    assert found["prompt"] == TOKENIZER.decode(asked["prompt"])
    assert "37+58=?" in found["prompt"]
    assert asked["temperature"] == 0.7
    assert asked["max_tokens"] == config.rollout.max_response_tokens
    assert asked["min_weight_version"] == 2
    assert "".join(t["text"] for t in found["tokens"]) == found["text"] == SAYS
    assert [s["version"] for s in found["weight_versions"]] == [3, 4]


@pytest.mark.parametrize(
    ("answer", "reward", "success"), [("95", 1.0, True), (95, 1.0, True), ("9", 0.5, False)]
)
def test_it_is_judged_as_the_run_judges(answer: object, reward: float, success: bool) -> None:
    _, found, _ = tried({"problem": "37+58=?", "answer": answer})
    assert (found["reward"], found["success"], found["note"]) == (reward, success, "")


def ended(tokenizer: Any, said: str, finish: str) -> tuple[Any, list[int]]:
    """The answer where vLLM samples `said`, and its tokens. As vLLM's, the text of the choice lacks the last
    token of a completion that stopped, and every special one."""
    tokens = tokenizer.encode(said, add_special_tokens=False)
    kept = tokens[:-1] if finish == "stop" else tokens
    choice = {
        "text": tokenizer.decode(kept, skip_special_tokens=True),
        "finish_reason": finish,
        "token_ids": tokens,
        "logprobs": {"token_logprobs": [-0.1] * len(tokens)},
    }

    async def sampled(body: dict[str, Any]) -> Any:
        return JSONResponse({"choices": [choice], "weight_versions": [[]]})

    config = load("tiny", ["rollout.stop=['</answer>']"])
    response = asyncio.run(Trial(config, tokenizer, sampled, score).answer(PROBLEM))
    return json.loads(bytes(response.body)), tokens


CUT = SAYS.removesuffix("answer>")


@pytest.mark.parametrize(
    ("said", "finish", "text", "success"),
    [
        (SAYS, "stop", SAYS, True),
        (f"{SAYS}<eos>", "stop", SAYS, True),
        (f"{SAYS}<eos>", "length", SAYS, True),
        (CUT, "length", CUT, False),
    ],
)
def test_the_text_is_the_one_that_the_run_judges(said: str, finish: str, text: str, success: bool) -> None:
    found, tokens = ended(TOKENIZER, said, finish)
    assert (found["text"], found["success"]) == (text, success)
    assert [t["id"] for t in found["tokens"]] == tokens, "all tokens are shown, the last one too"


def test_tags_that_are_special_tokens_stay_in_the_text() -> None:
    tokenizer = chat_tokenizer(TOKENIZER.chat_template, TAGS)
    for said in (SAYS, f"{SAYS}{TURN_END}"):
        found, _ = ended(tokenizer, said, "stop")
        assert (found["text"], found["success"]) == (SAYS, True)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ((), "no reward: it takes the right answer"),
        (
            ("environment.path=calculator",),
            "no reward: rollouts of this run are episodes of calculator, and this is one turn",
        ),
    ],
)
def test_without_a_reward_it_says_why(settings: tuple[str, ...], note: str) -> None:
    raw = PROBLEM if settings else {"problem": "37+58=?"}
    status, found, _ = tried(raw, load("tiny", settings))
    assert (status, found["note"]) == (200, note)
    assert not {"reward", "rewards", "success"} & set(found), "no reward is not a reward of 0"


OWN = """
def ends_well(problem, completion, gold):
    return float(completion.endswith(f"<answer>{gold}</answer>"))

def brief(answer):
    return {"tokens": answer.tokens, "asked": float(answer.row["problem"] == "37+58=?")}

def column(answer):
    return answer.row["tests"]

def ranks(answers):
    return [0.0 for _ in answers]
"""


def judged_by(names: str, raw: dict[str, Any]) -> Any:
    """The answer of a run whose rewards are these, by a real pool of verifiers."""
    settings = [f"reward.weights={{{names}}}", f"reward.success={names.split(':')[0]}:ends_well"]
    config = hasty(load("tiny", [*settings, "allocation.warmup.enabled=false"]))

    async def inside() -> Any:
        pool = VerifierPool(config.reward, 1)

        class Handle:
            def options(self, **_: str) -> Any:
                return self

            async def remote(self, items: list[Any]) -> list[dict[str, float]]:
                return await pool.score_batch(items)

        try:
            trial = Trial(config, TOKENIZER, complete, verifier_calls(Handle(), config))  # type: ignore[arg-type]
            return json.loads(bytes((await trial.answer(raw)).body))
        finally:
            pool.close()

    return asyncio.run(inside())


def test_rewards_of_the_users_own_in_the_working_folder_judge_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_trial_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)  # as Ray's workers have the working folder
    well = "own_trial_rewards:ends_well: 1.0"
    found = judged_by(f"{well}, 'own_trial_rewards:brief[tokens]': 0.5", PROBLEM)
    count = len(found["tokens"])
    assert found["rewards"]["own_trial_rewards:brief[tokens]"] == count
    assert (found["reward"], found["success"], found["note"]) == (1.0 + 0.5 * count, True, "")
    found = judged_by(well, {"problem": "37+58=?"})
    assert (found["reward"], found["success"]) == (0.0, False), (
        "one of the user's own may do without an answer"
    )
    found = judged_by(f"{well}, 'own_trial_rewards:column': 0.5", PROBLEM)
    assert "no reward: verifying 1 completions" in found["note"]
    assert f"failed {TRIES} times" in found["note"], "a client waits for the answer"
    assert "own_trial_rewards:column' raised KeyError: 'tests'" in found["note"]
    found = judged_by(f"{well}, 'own_trial_rewards:ranks': 0.5", PROBLEM)
    assert found["note"] == (
        "no reward: own_trial_rewards:ranks compares the completions of a group, and this is one"
    )
    assert "reward" not in found


def test_verifiers_that_are_away_are_no_wrong_answer() -> None:
    from common.errors import RunError

    async def away(prompt: Prompt, completions: list[Completion]) -> list[Scored]:
        raise RunError("verifying failed 20 times")

    status, found, _ = tried(PROBLEM, scoring=away)
    assert (status, found["note"]) == (200, "no reward: verifying failed 20 times")
    assert "success" not in found


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ([1], "the body must be a JSON object with a text `problem`"),
        ({"problem": " "}, "a text `problem`"),
        ({"problem": 5}, "a text `problem`"),
        ({**PROBLEM, "temperature": 0}, "field 'temperature' is not served here"),
        ({"problem": "1+" * 400}, "tokens, and rollout.max_prompt_tokens is"),
        ({**PROBLEM, "answer": "\ud800"}, "half of a character"),
    ],
)
def test_what_is_no_problem_is_refused_before_anything_is_sampled(raw: object, reason: str) -> None:
    status, found, asked = tried(raw)
    assert status == 400
    assert reason in found["error"]["message"]
    assert not asked


def test_a_refusal_of_the_policy_is_passed_on() -> None:
    status, found, _ = tried({**PROBLEM, "min_weight_version": 5000})
    assert (status, found["error"]["message"]) == (503, "no such weights yet")
