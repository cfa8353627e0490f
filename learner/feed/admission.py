"""Decides which queued groups may be trained on: groups of this run, of its prompts, with rewards that its
configuration can give. A refused group becomes a dead letter; one that cannot belong to the run is not
sampled again."""

from dataclasses import dataclass

from hora_rl.common.config import Config
from hora_rl.common.config.reward import BUILT_IN, RewardConfig
from hora_rl.common.errors import WireError
from hora_rl.common.live.staleness import Entry
from hora_rl.common.types import Group
from hora_rl.common.wire import decode_group
from hora_rl.learner.rows.packing import sequences as sequences_of


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Meaning of token ids: the tokenizer's fingerprint and the model's vocabulary size."""

    fingerprint: str
    size: int


class Foreign(WireError):
    """A group that this run cannot have requested."""


def admitted(
    config: Config, vocabulary: Vocabulary, prompts: int | None, entry: Entry, messages: tuple[bytes, bytes]
) -> Group:
    """Decode and check the group of `entry`. `prompts` is the run's number of prompts, None until that is
    known. Raises WireError for a group that cannot be trained on, and Foreign for one of an unknown prompt or
    data source."""
    group = decode_group(
        *messages,
        run=config.run.name,
        tokenizer=vocabulary.fingerprint,
        vocabulary=vocabulary.size,
    )
    if prompts is not None and group.prompt_index >= prompts:
        raise Foreign(
            f"group {group.id}: this run has {prompts} prompts, and none of index {group.prompt_index}"
        )
    if (group.id, group.batch) != (entry.group, entry.batch):
        raise WireError(
            f"group {group.id} of batch {group.batch} came as {entry.group} of batch {entry.batch}"
        )
    _check_lengths(group, config)
    if group.source not in config.source_names:
        there = ", ".join(config.data.sources) or "one data set without a name"
        raise Foreign(f"group {group.id}: this run has no data source {group.source!r} ({there})")
    _check_rewards(group, config.of(group.source).reward)
    return group


def _check_lengths(group: Group, config: Config) -> None:
    longest = max(len(r.tokens) for r in group.rollouts)
    if longest > config.rollout.max_response_tokens:
        raise WireError(f"group {group.id}: {longest} tokens exceed rollout.max_response_tokens")
    if len(group.prompt_tokens) > config.rollout.max_prompt_tokens:
        raise WireError(f"group {group.id}: its prompt exceeds rollout.max_prompt_tokens")
    if any(r.turns for r in group.rollouts) and config.environment.path is None:
        raise WireError(f"group {group.id}: it has several turns, and environment.path is null")
    sequences = (s for r in group.rollouts if r.turns for s in sequences_of(group.prompt_tokens, r))
    if any(s.length > config.longest for s in sequences):
        raise WireError(f"group {group.id}: a sequence exceeds {config.longest_in_words} tokens")


def _check_rewards(group: Group, reward: RewardConfig) -> None:
    """Check names and success against `reward`. Built-in rewards lie in [0, 1]; a user's may be any
    number."""
    names = set(reward.names)
    for i, rollout in enumerate(group.rollouts):
        if rollout.rewards.keys() != names:
            raise WireError(
                f"group {group.id}: its rewards must be {', '.join(sorted(names))}, of every rollout"
            )
        for name, value in rollout.rewards.items():
            if name in BUILT_IN and not 0.0 <= value <= 1.0:
                raise WireError(f"group {group.id} rollout {i}: reward {name} is {value:g}, it gives 0 to 1")
        if rollout.success != reward.succeeded(rollout.rewards):
            raise WireError(
                f"group {group.id} rollout {i}: success is {rollout.success}, and reward.success of its "
                "rewards is not"
            )
