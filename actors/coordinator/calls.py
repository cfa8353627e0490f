"""`generate` and `score` for shards, as calls of Serve deployments; and the system's only retry policy.

A request that fails or misses its deadline is retried on any replica with the same seed. After
`rollout.attempts` tries the run stops and names the request: a lost rollout is never a wrong answer and never
skipped. A full replica does not count as a try. Neither do missing weights: a learner that repeats steps
after a crash has a separate limit (`learner.wait_limit_s`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import structlog
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from hora_rl.actors.concurrency import BatchedCalls
from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.actors.coordinator.shard import Rank, unranked
from hora_rl.actors.verifier.code.runner import longest_s
from hora_rl.common.config import Config, RolloutConfig, WeightsConfig
from hora_rl.common.config.environment import ATTEMPTS
from hora_rl.common.config.reward import EPISODE, WAIT_LIMIT_S, RewardConfig
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.layouts import tests_of
from hora_rl.common.data.rewards import Answer, group_functions
from hora_rl.common.data.special_tokens import completed, silent_tokens, stop_texts
from hora_rl.common.errors import AwayTooLong, MissingWeights, NoRoom, RunError, StaleWeights
from hora_rl.common.types import Completion, Failed, Group, Prompt, Rollout, SamplingRequest, Scored
from hora_rl.common.user_code import is_user_function

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger(__name__)
T = TypeVar("T")
Answered = tuple[Prompt, Sequence[Completion]]
LONGEST_PAUSE_S = 5.0
STALE = 3  # attempts when no learner publishes weights
IN_LINE = 4


def generator_calls(
    handle: DeploymentHandle,
    rollout: RolloutConfig,
    weights: WeightsConfig,
    min_version: int,
    temperature: float | None = None,
    *,
    weights_come: bool = True,
    session: str = "",
    together: int = 1,
) -> Generate:
    """`generate` on weights of version `min_version` or newer. Without a learner (`weights_come` is false)
    older weights are a failed try. The first try of a `session` goes to one replica, retries to any.
    Concurrent requests share calls of at most `together` completions."""
    method = handle.options(method_name="generate")
    first = method.options(session_id=session) if session else method
    degrees = rollout.temperature if temperature is None else temperature

    async def send(requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        # generators do not need the row
        lean = [replace(request, prompt=replace(request.prompt, row={}, messages=())) for request in requests]

        def ask(before: int) -> Awaitable[list[list[Completion]]]:
            return (method if before else first).remote(lean, min_version, degrees)

        what = f"generating {sum(r.n for r in requests)} completions of {_named(r.prompt for r in requests)}"
        # A replica detects a dead or hung engine. This deadline covers all other failures, and allows for a
        # queue in front of the request.
        limit = IN_LINE * rollout.time_limit_s + weights.update_limit_s
        return await retry(ask, what, rollout.attempts, limit, patient=weights_come)

    return BatchedCalls(send, lambda request: request.n, together)


def _named(prompts: Iterable[Prompt]) -> str:
    indices = list(dict.fromkeys(p.index for p in prompts))
    return f"prompt{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def policy_calls(
    handle: DeploymentHandle,
    config: Config,
    min_version: int,
    *,
    weights_come: bool = True,
    together: int = 1,
) -> Generate:
    """`generate` of the deployment `config.policy`: episodes if there is an environment, else completions."""
    environment, rollout, weights = config.environment, config.rollout, config.weights
    if environment.path is None:
        return generator_calls(
            handle, rollout, weights, min_version, weights_come=weights_come, together=together
        )
    method = handle.options(method_name="sample")
    # Covers failures that no replica detects: long enough for all turns and tries of an episode.
    turn_s = IN_LINE * rollout.time_limit_s + weights.update_limit_s
    limit = ATTEMPTS * (environment.max_turns * turn_s + environment.time_limit_s)

    async def generate(request: SamplingRequest) -> list[Completion]:
        def ask(before: int) -> Awaitable[list[Completion] | Failed]:
            return method.remote(request, min_version, rollout.temperature, weights_come)

        what = f"{request.n} episodes of prompt {request.prompt.index}"
        episodes = await retry(ask, what, rollout.attempts, limit, patient=weights_come)
        if isinstance(episodes, Failed):
            raise RunError(episodes.reason)
        return episodes

    return generate


def verifier_calls(handle: DeploymentHandle, config: Config) -> Score:
    """`score`: rewards by name and success of each completion, by the rules of the prompt's source."""
    rewards = {source: config.of(source).reward for source in config.source_names}
    by_source = {source: _scores(handle, reward, config.rollout) for source, reward in rewards.items()}

    async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        return await by_source[prompt.source]((prompt, completions))

    return score


def _scores(
    handle: DeploymentHandle, reward: RewardConfig, rollout: RolloutConfig
) -> BatchedCalls[Answered, list[Scored]]:
    """`verifier_calls` of one source, in shared calls of `rollout.samples_per_request` answers."""
    method = handle.options(method_name="score")
    needs_row = any(is_user_function(name) or name == "code_tests" for name in reward.names)

    def row_of(prompt: Prompt) -> Mapping[str, object]:
        return prompt.row if needs_row or TASK in prompt.row else {}

    def limit_s(answered: Sequence[Answered]) -> float:
        limit = reward.time_limit_s * sum(len(c) for _, c in answered) + WAIT_LIMIT_S
        if "code_tests" in reward.names:
            runs = sum(tests_of(reward.code_tests, prompt.row).runs * len(c) for prompt, c in answered)
            limit += longest_s(reward.code_tests, runs)
        return limit + rollout.time_limit_s

    async def send(answered: Sequence[Answered]) -> list[list[Scored]]:
        items = [
            _answer(prompt, c.text, row_of(prompt), len(c.tokens), c.finish_reason)
            for prompt, completions in answered
            for c in completions
        ]

        what = f"verifying {len(items)} completions of {_named(prompt for prompt, _ in answered)}"
        judged: list[dict[str, float]] = [{}] * len(items)
        if reward.judged:
            judged = await retry(lambda _: method.remote(items), what, rollout.attempts, limit_s(answered))
        scores = iter(judged)
        return [[_scored(reward, next(scores), c) for c in completions] for _, completions in answered]

    return BatchedCalls(send, lambda pair: len(pair[1]), rollout.samples_per_request)


def _scored(reward: RewardConfig, judged: Mapping[str, float], completion: Completion) -> Scored:
    rewards = {**judged, **{EPISODE + name: value for name, value in completion.rewards.items()}}
    return Scored(rewards, reward.succeeded(rewards))


def group_calls(handle: DeploymentHandle, config: Config, text_of: Callable[[Rollout], str]) -> Rank:
    """`rank`: adds group rewards to a complete group, by the rules of the prompt's source."""
    method, rollout = handle.options(method_name="score_group"), config.rollout
    limits = dict[str, float]()  # seconds, of the sources with such rewards
    for source in config.source_names:
        rules = config.of(source)
        if functions := group_functions(rules.reward, rules.gate):
            limits[source] = rules.reward.time_limit_s * len(functions) + WAIT_LIMIT_S + rollout.time_limit_s
    if not limits:
        return unranked

    async def rank(prompt: Prompt, group: Group) -> Group:
        if prompt.source not in limits:
            return group
        texts = await asyncio.to_thread(lambda: [text_of(r) for r in group.rollouts])
        items = [
            _answer(prompt, text, prompt.row, len(r.tokens), r.finish_reason)
            for text, r in zip(texts, group.rollouts, strict=True)
        ]

        what = f"ranking the {len(items)} completions of prompt {prompt.index}"
        limit = limits[prompt.source]
        values = await retry(lambda _: method.remote(items), what, rollout.attempts, limit)
        return ranked(group, values)

    return rank


def ranked(group: Group, values: Sequence[Mapping[str, float]]) -> Group:
    """`group` with group rewards added. `values` (G_i,) holds those of each rollout by name."""
    rollouts = tuple(
        replace(r, rewards={**r.rewards, **value}) for r, value in zip(group.rollouts, values, strict=True)
    )
    return replace(group, rollouts=rollouts, ranked=tuple(values[0]))


class LastTexts:
    """Decodes a rollout to the text that its rewards saw. Phase A rollouts are stored as tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._silent = tokenizer, silent_tokens(tokenizer)
        self._stop = stop_texts(stop, tokenizer)

    def __call__(self, rollout: Rollout) -> str:
        """The last turn, without its end token and special tokens."""
        ids = rollout.tokens[-rollout.turns[-1].sampled :] if rollout.turns else rollout.tokens
        return completed(self._tokenizer, self._silent, ids.tolist(), rollout.finish_reason, self._stop)


def _answer(prompt: Prompt, text: str, row: Mapping[str, object], tokens: int, finish_reason: str) -> Answer:
    completion = prompt.prefill + text
    return Answer(
        prompt.text, completion, prompt.answer, row, prompt.index, tokens, finish_reason, prompt.source
    )


async def retry(
    ask: Callable[[int], Awaitable[T]], what: str, attempts: int, limit_s: float, *, patient: bool = False
) -> T:
    """First result of `ask(number of earlier calls)`, in up to `attempts` tries of `limit_s` seconds with
    growing pauses. A full replica does not count as a try; with `patient`, stale weights do not either.
    Cancelling cancels the try. Raises RunError after the last try or when a reward was unavailable too long,
    and MissingWeights after a few tries on stale weights."""
    attempt = 1
    for before in count():
        try:
            async with asyncio.timeout(limit_s):
                return await _answer_of(ask(before))
        except AwayTooLong as error:  # the verifier has retried for as long as allowed
            raise RunError(f"{what} failed: {_short(error)}") from error
        # Broad: sampling and scoring have no side effects, so any error of a replica, the network or Serve is
        # retried.
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # also where the call failed in the same moment
                raise
            stale = isinstance(error, StaleWeights)
            if stale and not patient and attempt >= min(STALE, attempts):
                raise MissingWeights(f"{what} failed: {_short(error)}") from error
            if not (isinstance(error, NoRoom) or (patient and stale)):
                if attempt == attempts:
                    raise RunError(
                        f"{what} failed {attempts} times; last: {_short(error)}. See the replica's log in "
                        "`serve status`."
                    ) from error
                log.warning("retry", what=what, attempt=attempt, error=_short(error))
                attempt += 1
            pause = min(LONGEST_PAUSE_S, 0.1 * 2 ** min(attempt, 10))  # a float ends at 2**1024
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable: counting has no end")


async def _answer_of(response: Awaitable[T]) -> T:
    """Await the response. On cancellation, cancel it: Ray would let it run."""
    try:
        return await response
    except asyncio.CancelledError:
        if isinstance(response, DeploymentResponse):
            response.cancel()
        raise


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
