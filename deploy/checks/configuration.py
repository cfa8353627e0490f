"""Checks of model, allocation rule, prior, rewards and packages that work on any machine."""

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hora_rl.actors.coordinator.prompt_features import feature_model
from hora_rl.actors.data.datasets import usable_held_out
from hora_rl.actors.environment.registry import environment_of, load_environment
from hora_rl.actors.verifier.answers import load_extract
from hora_rl.allocator import allocate
from hora_rl.allocator.priors import UNCONDITIONED, beta_of, kind_of
from hora_rl.common.config import AllocationConfig, Config, EnvironmentConfig, RolloutConfig
from hora_rl.common.config.environment import LIBRARY
from hora_rl.common.data.rewards import group_functions, load_reward
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import check_paths
from hora_rl.common.model.adapters import check_base, refuse_to_train
from hora_rl.common.user_code import function_of, is_user_function, working_folder
from hora_rl.common.wire import MAX_BYTES, MAX_ROLLOUTS
from hora_rl.deploy.checks.findings import Finding, Target, configuration_of, must, ok, plural, should, warn
from hora_rl.deploy.checks.machine import model_gib
from hora_rl.learner.rows.estimator import estimator_of

TOKEN_BYTES = 8
"""A token and its log-prob in a message."""
NOT_UPDATED = ("GptOssForCausalLM",)
"""Classes of vLLM that take weights past its layerwise reload, so a second version does not arrive whole."""
NO_WRITER = re.compile("Classification|QuestionAnswering|MaskedLM|Reward|Embedding")
"""Classes whose weights may fill a language model of their family, but for its head."""
OWN_FAULTS = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


def model(target: Target) -> Iterator[Finding]:
    """The model's folder or hub name, its adapter, and whether data and prior files exist."""
    config = target.config
    check_paths(config)
    if config.model.adapter is not None:
        if target.trains:
            refuse_to_train(config.model)
        check_base(config.model)
    path, size = config.model.path, model_gib(config.model.path)
    if Path(path).is_dir():
        yield must(size > 0, "model", f"{path}, {size * 1024:,.0f} MiB of weights", "put *.safetensors there")
    else:
        offline = os.environ.get("HF_HUB_OFFLINE") == "1"
        fix = "HF_HUB_OFFLINE=1, so it must be in the cache; or name a local folder"
        yield should(not offline, "model", f"{path}, from the cache or the hub", fix)


def names(target: Target) -> Iterator[Finding]:
    """Rule, rounds, prior, rewards, warm-ups. A replica that met these errors would be restarted for ever."""
    config, allocation, objective = target.config, target.config.allocation, target.config.learner.objective
    if not target.trains:
        return
    rewards = {source: config.of(source).reward for source in config.source_names}
    with working_folder():
        _try_rule(allocation, config.rollout, "allocation.rule", allocation.rule)
        if (as_if := objective.group_weight.as_if) is not None:
            _try_rule(allocation, config.rollout, "learner.objective.group_weight.as_if", as_if)
        try:
            for source, reward in rewards.items():
                for name in filter(is_user_function, reward.names):
                    load_reward(function_of(name))
                group_functions(reward, config.of(source).gate)
                load_extract(reward.answer)
            if config.environment.path == LIBRARY:
                asyncio.run(_start_library(config.environment, config.run.name))
            elif config.environment.path is not None:
                load_environment(config.environment.path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if is_user_function(objective.advantage):
            estimator_of(config).try_advantage(config.rollout.pre_rollouts)
    try:
        beta_of(allocation.prior)
        unconditioned = kind_of(allocation.prior) in UNCONDITIONED
    except ValueError as error:
        raise ConfigError(f"allocation.{error}") from None
    if not unconditioned:
        feature_model(allocation, config.model.path)
    success = "; ".join(
        (f"{source}: " if source else "")
        + (f"{reward.success} of at least {reward.success_at:g}" if reward.success else "none")
        for source, reward in rewards.items()
    )
    gate = f"warm-up: uniform until the mean {config.gate} reward is {allocation.warmup.format_reward}"
    yield ok(
        "allocation",
        f"rule {allocation.rule}, prior {allocation.prior}; {gate if config.gate else 'no warm-up'}; "
        f"success: {success}",
    )
    yield from _without_effect(config)


def _without_effect(config: Config) -> Iterator[Finding]:
    """Warnings of settings that leave nothing to divide, or nothing to gain."""
    allocation, rollout, learner = config.allocation, config.rollout, config.learner
    if allocation.rounds > 1 and allocation.stop == "none" and allocation.rule == "hit_utility":
        says = f"{allocation.rounds} rounds, stop none: prompts with a hit get more too; one round finds more"
        fix = "allocation.stop: hit (`hora plan` compares), or allocation.rounds: 1"
        yield warn("allocation.rounds", says, fix)
    if (warmup := learner.optimizer.warmup_steps) >= learner.steps:
        says = f"{warmup} steps, of a run of {learner.steps}: the learning rate only rises"
        yield warn("learner.optimizer.warmup_steps", says, "lower it")
    if allocation.needs_counts:
        even = f"every group has G rollouts, whatever rule {allocation.rule} finds"
        if rollout.prompts_per_shard == 1:
            yield warn("rollout.shards", even, "lower it: a shard of one prompt gives that its whole budget")
        if allocation.max_group_size == rollout.group_size:
            yield warn("allocation.max_group_size", even, "raise it above rollout.group_size")


async def _start_library(environment: EnvironmentConfig, run: str) -> None:
    async with environment_of(environment, run):
        pass


def _try_rule(allocation: AllocationConfig, rollout: RolloutConfig, key: str, rule: str) -> None:
    """Allocate a batch that holds every count c_i once, and one with successes of every prompt, which alone
    uses the rule in `first_hit(RULE)`. Raises ConfigError with `key` if the rule fails."""
    trials, extra = rollout.pre_rollouts, rollout.group_size - rollout.pre_rollouts
    try:
        for least in (0, 1):
            counts = np.arange(least, trials + 1)
            allocate(counts, trials, len(counts) * extra, (1.0, 1.0), rule, allocation.max_group_size)
    except OWN_FAULTS as error:
        text = str(error).removeprefix("rule: ").removeprefix(f"rule {rule}: ")
        reason = text if isinstance(error, ValueError) else f"raised {type(error).__name__}: {text}"
        raise ConfigError(f"{key} ({rule}): {reason}") from None


def context(target: Target) -> Iterator[Finding]:
    """Prompt and response limits against the model's positions. vLLM would not start with larger ones."""
    model = target.config.model
    if (settings := configuration_of(model)) is None:
        return
    positions = getattr(settings, "max_position_embeddings", None)
    needed = target.config.longest
    if positions is not None and needed > positions:
        raise ConfigError(
            f"{target.config.longest_in_words} exceed the {positions} positions of {model.path}: lower one"
        )
    yield ok("context", f"{needed} tokens of {positions or 'unbounded'} positions")


def family(target: Target) -> Iterator[Finding]:
    """Whether the learner computes this model family's log-probs correctly."""
    from hora_rl.learner.model.agreement import check_family

    if target.trains:
        config = target.config
        refuse_untrainable(config)
        name, unshared = check_family(config.model, config.learner, config.rollout.temperature)
        prompts = f"each rollout computes its prompt again: {unshared}" if unshared else "prompts are shared"
        yield ok("family", f"{name}: log-probs are those of the model's own forward; {prompts}")


def refuse_untrainable(config: Config) -> None:
    """Raise ConfigError for quantized weights, for a class that writes no text, and for one that vLLM cannot
    update."""
    if (settings := configuration_of(config.model)) is None:
        return
    name, quantization = (settings.architectures or [""])[0], getattr(settings, "quantization_config", None)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    reasons = {
        f"{name} (architectures in its config.json) writes no text: use the family's language model": (
            NO_WRITER.search(name)
        ),
        f"vLLM cannot replace the weights of a running {name}, so the generators cannot follow the learner: "
        "use another model": name in NOT_UPDATED and config.learner.lora is None,
        f"its weights are quantized ({getattr(method, 'quant_method', method)}), which the learner does not "
        "train: use the family's bfloat16 checkpoint": quantization is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"model.path ({config.model.path}): {reason}")


def group_size(target: Target) -> Iterator[Finding]:
    """Warn if one prompt can get a group larger than a message or `MAX_ROLLOUTS`: G0 and all of its shard's
    Phase B, up to `max_group_size`. Such a group is refused each time it is sampled."""
    config, rollout, allocation = target.config, target.config.rollout, target.config.allocation
    if not target.trains:
        return
    rollouts = rollout.group_size
    if allocation.needs_counts:
        rollouts = rollout.pre_rollouts + rollout.shard_budget
        rollouts = min(rollouts, allocation.max_group_size or rollouts)
    each = TOKEN_BYTES * (config.longest - rollout.max_prompt_tokens)
    most = min(MAX_BYTES // each, MAX_ROLLOUTS)
    yield should(
        rollouts <= most,
        "largest group",
        f"{rollouts:,} rollouts of one prompt, at most {rollouts * each / 2**20:,.0f} MiB; a message may "
        f"have {MAX_BYTES / 2**20:,.0f} and {MAX_ROLLOUTS:,} rollouts",
        f"a larger one is refused whenever it comes: set allocation.max_group_size to at most {most:,}, or "
        "use more rollout.shards",
    )


def packages(target: Target) -> Iterator[Finding]:
    """Optional packages and programs that this configuration needs, and arguments of a cluster's engines."""
    learner, arguments = target.config.learner, target.config.generator.engine_args
    if arguments and target.on_cluster:  # here the engine says it
        # Imports vLLM, which takes seconds.
        from hora_rl.actors.generator.engine_args import check_engine_args

        check_engine_args(arguments)
    hook = target.config.telemetry.on_alert
    if hook and not hook.startswith("http") and target.trains:
        program = shlex.split(hook)[0]
        fix = f"there is no program {program!r}: give its path, or make it executable"
        yield must(shutil.which(program) is not None, "telemetry.on_alert", program, fix)
    if learner.wandb and target.trains:
        fix = "wandb is not installed: .venv/bin/pip install wandb, or set it to null"
        yield must(find_spec("wandb") is not None, "learner.wandb", learner.wandb, fix)


def evaluation(target: Target) -> Iterator[Finding]:
    """Cost of an evaluation during training, relative to the training between two evaluations."""
    config, settings = target.config, target.config.evaluation
    if settings.every is None or not target.trains:
        return
    longest, metric = config.rollout.max_response_tokens, config.learner.keep_best
    mine = min(settings.prompts, len(usable_held_out(config))) * settings.samples
    theirs = settings.every * config.rollout.batch_size
    best = f"; the weights of the best {metric} are kept" if metric else ""
    says = (
        f"every {plural(settings.every, 'step')} {mine:,} completions (at most {mine * longest:,} tokens), "
        f"{mine / theirs:.0%} of the {theirs:,} rollouts trained meanwhile{best}"
    )
    yield ok("evaluation", says)
    if mine > theirs:
        says = "more than is trained meanwhile: it may take longer, and some evaluations will be left out"
        yield warn("evaluation", says, "raise evaluation.every, or lower evaluation.prompts or samples")
