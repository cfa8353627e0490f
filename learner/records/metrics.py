"""Computes the metrics of one step from sums over micro-batches and ranks. Every view uses these names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.data.rewards import total
from hora_rl.common.types import Group


def step_metrics(
    step: int,
    groups: Sequence[Group],
    sums: Mapping[str, float],
    config: Config,
    *,
    ranks: int,
    grad_norm: float,
    learning_rate: float,
) -> dict[str, float]:
    """Metrics of step `step`. `groups` are all Γ groups, `sums` the objective's sums over ranks.

    Rewards are means over prompts of each group's mean, weighted as in the objective: HORA samples hard
    prompts more often, so a mean over rollouts would depend on the allocation rule. Objective statistics are
    means over trained tokens; NaN without any."""
    rollouts = [r for g in groups for r in g.rollouts]
    sources = {name: config.of(name).reward for name in config.source_names}
    rewards = [_totals(g, sources) for g in groups]
    names = dict.fromkeys(name for g in groups for name in g.rollouts[0].rewards)  # sources may differ
    lengths = np.array([len(r.tokens) for r in rollouts])
    turns = (
        {}
        if config.environment.path is None
        else {
            "turns/mean": mean(len(r.turns) or 1 for r in rollouts),
            "turns/given_tokens": mean(r.context_tokens for r in rollouts),
        }
    )
    lags, of = np.array([(step - s.version, s.end - s.start) for r in rollouts for s in r.spans]).T
    return {
        "step": step,
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "reward": mean(r.mean() for r in rewards),
        **{f"reward/{name}": _over_prompts(groups, name) for name in names},
        **(_by_source(groups, sources) if config.data.sources else {}),
        **_objective(sums),
        # An estimate from all sampled tokens. The exact mean over trained ones leaves out groups without a
        # signal, whose tokens are the surest, and rules differ in how many they leave.
        "entropy": -float(np.mean(np.concatenate([r.logprobs for r in rollouts]))),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        **turns,
        "length/cut": mean(r.finish_reason == "length" for r in rollouts),
        "rollouts": len(rollouts),
        "tokens": int(lengths.sum()),
        "tokens_trained": sums.get("tokens_trained", 0.0),
        "lag/mean": float(np.average(lags, weights=of)),
        "lag/max": float(lags.max()),
        "groups/zero_signal": mean(np.ptp(r) == 0.0 for r in rewards),
        "groups/size_one": mean(len(r) == 1 for r in rewards),
        "groups/mixed_phases": mean(g.mixed_phases for g in groups),
        **_successes(groups, sources),
        **_packing(sums, ranks),
    }


def mean(values: Iterable[float | np.floating[Any]]) -> float:
    return float(np.mean([*values]))


def _objective(sums: Mapping[str, float]) -> dict[str, float]:
    """Statistics of the objective, means over trained tokens; drift over the tokens that count for it."""
    matched = sums.get("drift_tokens", 0.0) or math.nan

    def per_token(name: str) -> float:
        return sums.get(name, math.nan) / (sums.get("tokens_trained", 0.0) or math.nan)

    return {
        "loss": sums.get("loss", math.nan),
        "advantage/mean": per_token("advantage"),
        "advantage/rms": math.sqrt(per_token("advantage_square")),
        "clip/share": per_token("clip"),
        "bounded/share": per_token("bounded"),
        "importance/mean": per_token("importance"),
        "importance/rms": math.sqrt(per_token("importance_square")),
        "importance/capped": per_token("importance_capped"),
        "importance/max": sums.get("importance_max", math.nan),
        "kl/generator": per_token("kl_generator"),
        "entropy/trained": per_token("entropy"),
        "drift": sums.get("drift", math.nan) / matched,
        "drift/tokens": matched,
    }


def _packing(sums: Mapping[str, float], ranks: int) -> dict[str, float]:
    """Share of padding in the processed tokens; relative excess FLOPs of the busiest rank over the mean."""
    busiest, processed = sums.get("packing/rank_flops_max", 0.0), sums.get("packing/processed")
    return {
        "padding/share": 1.0 - sums["packing/tokens"] / processed if processed else 0.0,
        "imbalance": busiest * ranks / sums["packing/flops"] - 1.0 if sums.get("packing/flops") else 0.0,
    }


def _successes(groups: Sequence[Group], sources: Mapping[str, RewardConfig]) -> dict[str, float]:
    """Mean success rate over prompts, and share of groups with a success; empty without successes."""
    counted = [g for g in groups if sources[g.source].success is not None]
    if not counted:
        return {}
    return {
        "success": mean(g.hits / g.size for g in counted),
        "groups/hit": mean(g.hits > 0 for g in counted),
    }


def _totals(group: Group, sources: Mapping[str, RewardConfig]) -> np.ndarray:
    """The weighted reward of each rollout (G_i,), by the weights of its source."""
    weights = sources[group.source].weights
    return np.array([total(r.rewards, weights) for r in group.rollouts])


def _by_source(groups: Sequence[Group], sources: Mapping[str, RewardConfig]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for source in sources:
        of_source = [g for g in groups if g.source == source]
        key = f"source/{source}"
        metrics[f"{key}/groups"] = len(of_source)
        if of_source:
            metrics[f"{key}/rollouts"] = sum(g.size for g in of_source)
            metrics[f"{key}/tokens"] = sum(g.tokens for g in of_source)
            metrics[f"{key}/reward"] = mean(_totals(g, sources).mean() for g in of_source)
            metrics |= {f"{key}/{name}": value for name, value in _successes(of_source, sources).items()}
    return metrics


def _over_prompts(groups: Sequence[Group], name: str) -> float:
    rewarded = [g for g in groups if name in g.rollouts[0].rewards]
    return mean(mean(r.rewards[name] for r in g.rollouts) for g in rewarded)
