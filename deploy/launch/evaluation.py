"""Pass@K on running generators and verifiers: a run's held-out problems, and the benchmarks of `hora
eval`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.actors.data.datasets import Dataset, load_dataset, usable_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.config import Config, DataConfig, EvaluationConfig, GeneratorConfig
from hora_rl.common.console import say
from hora_rl.common.data.prompts import load_tokenizer, make_prompt, prompt_of, refuse_unknown
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.redis import Redis, connect
from hora_rl.common.live.state import read_state
from hora_rl.common.live.telemetry import record_evaluation
from hora_rl.common.model.model_files import vocabulary_rows, weights_digest
from hora_rl.common.types import AFTER_TRAINING, Completion, Prompt, SamplingRequest
from hora_rl.common.weights.announcement import newest_now
from hora_rl.deploy.app import APP
from hora_rl.deploy.monitor.terminal import sampling_bar
from hora_rl.evaluation.benchmarks import Benchmark, held_out, refuse_long
from hora_rl.evaluation.evaluate import Counts, evaluate
from hora_rl.evaluation.report.tables import write_result
from hora_rl.evaluation.results import Result, make_result, model_digest, read_result
from hora_rl.learner.records.step_records import log_evaluation

JUDGING = {"answer", "time_limit_s", "code_tests"}
EPISODES = {"path", "verifiers", "max_turns", "max_turn_tokens", "max_given_tokens", "history"}
Drive = Callable[[Coroutine[None, None, Counts]], Counts]
"""Runs an evaluation coroutine to its end."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run while it trains: its configuration, the URL of its Redis, its folder, and its command's
    console."""

    config: Config
    url: str
    folder: Path
    console: Console

    def say(self, line: str) -> None:
        say(self.console, line)


def is_missing(settings: EvaluationConfig, run_dir: Path, step: int) -> bool:
    """Whether the run has held-out problems without a result for weights of version `step`."""
    if settings.path is None:
        return False
    return not (run_dir / "evaluation" / f"{held_out(settings).name}-step{step}.json").exists()


def evaluate_run(run: TrainingRun, step: int, drive: Drive = asyncio.run) -> None:
    """Evaluate weights of version `step` on the run's held-out problems, unless it has none or their result.
    Generators hold only the newest weights: if these are newer, print one line and skip the evaluation."""
    config = run.config
    if not is_missing(config.evaluation, run.folder, step):
        return
    client: Redis = connect(run.url)
    announced = newest_now(client, config.run.name)
    held = max(announced.version if announced else 0, read_state(client, config.run.name).version)
    if held > step:
        run.say(
            f"step {step} is not evaluated: the generators hold version {held} by now, and older weights "
            "cannot be sampled; `hora eval` measures a model folder"
        )
        return
    benchmark, folder = held_out(config.evaluation), run.folder / "evaluation"
    problems = run_problems(run)
    result = sample(config, benchmark, problems, folder, step, run.console, version=step, drive=drive)
    keep_result(run, result)


def run_problems(run: TrainingRun) -> list[Prompt]:
    return prompts(run.config, run.config.evaluated.data, usable_held_out(run.config), run.console)


def keep_result(run: TrainingRun, result: Result) -> None:
    """Write Pass@K, step and sampled versions to the live views and the trackers, then the result to the run:
    its presence ends the evaluation, so a killed run records it again."""
    values = {f"pass@{e.k}": e.value for e in result.estimates()}
    values |= dict(zip(("version/min", "version/max"), map(float, result.versions), strict=False))
    record_evaluation(connect(run.url, patient=True), run.config.run.name, result.step, values)
    log_evaluation(run.config, run.folder, result.step, values)
    write_result(run.folder / "evaluation", result)


def load_benchmark(config: Config, benchmark: Benchmark, console: Console) -> list[Prompt]:
    """The prompts of `benchmark` for the model of `config`. Raises ConfigError for any problem with them,
    before a generator starts."""
    if config.evaluated.reward.success is None:
        raise ConfigError(
            f"Pass@K counts successes, and no reward of {config.run.name!r} says what a success is: name one "
            "in reward.success"
        )
    data = benchmark.data(config.evaluated.data, config.evaluation)
    rows = load_dataset(data, gold_test(config.evaluated.reward), "evaluation")
    return prompts(config, data, rows, console)


def prompts(config: Config, data: DataConfig, dataset: Dataset, console: Console) -> list[Prompt]:
    """Render problems; print each rejected row with its reason. Raises ConfigError for one too long."""
    for rejected in dataset.rejected:
        say(console, f"left out: {rejected.location}: {rejected.reason}")
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    source, columns = config.evaluated_source, config.evaluated.reads_rows
    prompts = [make_prompt(tokenizer, row.index, row, data, source, columns) for row in dataset.rows]
    rows = vocabulary_rows(config.model)
    for row, prompt in zip(dataset.rows, prompts, strict=True):
        refuse_unknown(tokenizer, prompt.tokens, rows, prompt_of(row))
    refuse_long(dataset.name, [len(p.tokens) for p in prompts], config.rollout.max_prompt_tokens)
    return prompts


def sample(
    config: Config,
    benchmark: Benchmark,
    problems: list[Prompt],
    folder: Path,
    step: int,
    console: Console,
    *,
    version: int,
    drive: Drive = asyncio.run,
) -> Result:
    """Draw the missing samples on all replicas. `step` counts the optimizer steps of the weights; `version`
    those of the current run, 0 for the configured model."""
    file, about = samples_file(folder, benchmark, step), {"benchmark": benchmark.name, "step": step}
    title, truncation = f"{benchmark.title}, step {step}", config.evaluation.truncation
    counts = draw(
        config, problems, benchmark.samples, file, about, title, console,
        truncation=truncation, version=version, drive=drive,
    )  # fmt: skip
    model = config.run.name if version else config.model.adapter or config.model.path
    # A model folder from another run has a step, but no versions of this run.
    versions = counts.versions if version == step else ()
    return result_of(config, benchmark, counts, problems, model, step, versions)


def draw(
    config: Config,
    prompts: Sequence[Prompt],
    samples: int,
    file: Path,
    about: Mapping[str, object],
    title: str,
    console: Console,
    *,
    truncation: Mapping[str, float] | None = None,
    version: int = 0,
    drive: Drive = asyncio.run,
) -> Counts:
    """Draw the missing samples of `prompts` on weights `version` alone, under a bar. `about` tells what they
    are, besides the sampling's settings."""
    size = config.rollout.samples_per_request
    with sampling_bar(title, len(prompts) * samples, console) as progress:
        return drive(
            evaluate(
                prompts,
                *application_calls(config, version, exact=True),
                samples,
                file,
                about={**about, **about_sampling(config)},
                seed=config.run.seed,
                truncation=truncation,
                samples_per_request=size,
                in_flight=in_flight(config.generator, size),
                progress=progress,
            )
        )


def result_of(
    config: Config,
    benchmark: Benchmark,
    counts: Counts,
    problems: list[Prompt],
    model: str,
    step: int,
    versions: Sequence[int],
) -> Result:
    """The result of `counts`. `versions` are the oldest and the newest sampled weights."""
    result = make_result(
        benchmark, counts, problems, model, step, config.rollout.temperature, config.run.seed
    )
    if model == config.model.path:  # the initial model
        result = replace(result, weights=model_digest(model))
    formatted = result.formatted if "format" in config.evaluated.reward.names else None
    truncation = config.evaluation.truncation
    return replace(result, formatted=formatted, versions=list(versions), truncation=truncation)


def samples_file(folder: Path, benchmark: Benchmark, step: int) -> Path:
    return folder / f"{benchmark.name}-step{step}.samples.jsonl"


def application_calls(config: Config, version: int, *, exact: bool = False) -> tuple[Generate, Score]:
    """Calls to generators, on weights `version` or newer, and to verifiers of the running application. With
    `exact`, sampling uses those weights alone, which nobody publishes any more, after training's."""
    from ray import serve

    from hora_rl.actors.coordinator.calls import policy_calls, verifier_calls

    policy, verifier = (serve.get_deployment_handle(name, APP) for name in (config.policy, "verifier"))
    generate = policy_calls(policy, config, version, weights_come=not exact)
    return of_version(generate, version) if exact else generate, verifier_calls(verifier, config)


def of_version(generate: Generate, version: int) -> Generate:
    """`generate` with lower priority than training, so that evaluating the initial policy does not delay the
    first batch. Raises RunError if any token is from another version of the weights."""

    async def checked(request: SamplingRequest) -> list[Completion]:
        completions = await generate(replace(request, priority=AFTER_TRAINING))
        wrong = {s.version for c in completions for s in c.spans} - {version}
        if wrong:
            raise RunError(
                f"an evaluation of version {version} was answered by version {min(wrong)}: "
                "weights changed while it ran; nothing of this answer is kept"
            )
        return completions

    return checked


def in_flight(generator: GeneratorConfig, size: int) -> int:
    """Requests of `size` completions to keep in flight: twice what the replicas sample at once, so that none
    idles while answers are verified."""
    each = min(-(-2 * generator.max_sequences // size), generator.max_requests)
    return each * generator.replicas


def read_run_results(settings: EvaluationConfig, run_dir: Path) -> list[Result]:
    """Results of the run's held-out problems so far, by step."""
    if settings.path is None:
        return []
    files = (run_dir / "evaluation").glob(f"{held_out(settings).name}-step*.json")
    return sorted((read_result(p) for p in files), key=lambda r: r.step)


def about_sampling(config: Config) -> dict[str, object]:
    """Settings that determine completions and their success, except problems and seed."""
    adapter, reward = config.model.adapter, config.evaluated.reward
    optional = {
        "adapter": adapter and weights_digest(Path(adapter)),
        "engine_args": config.generator.engine_args,
        "stop": list(config.rollout.stop),
        "environment": config.environment.path
        and config.environment.model_dump(mode="json", include=EPISODES),
    }
    return {
        "model": config.model.path,
        "weights": weights_digest(Path(config.model.path)),
        "dtype": config.model.dtype,
        "temperature": config.rollout.temperature,
        "max_response_tokens": config.rollout.max_response_tokens,
        "success": reward.success,
        "success_at": reward.success_at,
        **reward.model_dump(mode="json", include=JUDGING, exclude_defaults=True),
        **{key: value for key, value in optional.items() if value},
    }


@contextmanager
def stopped_and_kept(kept: str, console: Console) -> Iterator[None]:
    """Turn Ctrl-C or a stop signal in the block into exit status 130, after printing what is `kept`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say(console, f"\nstopped; {kept}: the same command continues")
        raise SystemExit(130) from None
