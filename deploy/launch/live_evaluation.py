"""Pass@K during training: held-out problems on the training run's generators.

    version reaches a multiple of evaluation.every ─► requests behind training's ─► samples on disk
        ─► result ─► every view, and learner.keep_best

Training continues. All replicas sample the evaluation with the lowest priority, in a few places each, on
weights of its step or newer, which may change during the evaluation. A result names its oldest and newest
version. Each evaluation is finished before the next starts. All runs in a thread of the launcher.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError
from hora_rl.common.live.redis import AsyncRedis, connect_async
from hora_rl.common.live.state import read_state_async
from hora_rl.common.live.telemetry import EvaluatorBeat, keep_beating, stop_beating
from hora_rl.common.processes import background_thread
from hora_rl.common.types import BELOW_TRAINING, Completion, Prompt, SamplingRequest
from hora_rl.deploy.launch.best import promote_best
from hora_rl.deploy.launch.evaluation import (
    TrainingRun,
    about_sampling,
    application_calls,
    keep_result,
    read_run_results,
    result_of,
    run_problems,
    samples_file,
)
from hora_rl.deploy.launch.first_evaluation import Cancellable
from hora_rl.evaluation.benchmarks import held_out
from hora_rl.evaluation.evaluate import Counts, Progress, evaluate
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.samples import newest_version
from hora_rl.learner.checkpoints.origin import candidates_in

POLL_S = 1.0
JOIN_S = 20.0
PART = "evaluator/live"
Calls = Callable[[Config, int], tuple[Generate, Score]]
"""Returns `generate`, on weights of at least a version, and `score`."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next step to evaluate, None if none is due, and the skipped older steps."""

    step: int | None
    left_out: tuple[int, ...]


def next_evaluation(
    every: int, steps: int, version: int, done: Collection[int], begun: Collection[int]
) -> Next:
    """`version`: newest published. `done`: steps with a result. `begun`: steps with samples but no result.
    Excluded are the last step, which is evaluated after training, step 0 after training starts, and steps
    before the last finished evaluation."""
    newest = max((s for s in done if s <= version), default=-1)
    due = [s for s in range(0, min(version, steps - 1) + 1, every) if s > newest]
    under_way = [s for s in due if s in begun]
    if not under_way and due == [0] and version > 0:
        return Next(None, (0,))
    if not due:
        return Next(None, ())
    step = max(under_way) if under_way else due[-1]
    return Next(step, tuple(s for s in due if s < step))


def is_late(every: int, step: int, version: int) -> bool:
    """Whether the next evaluation is due during that of `step`."""
    return version >= step + every


@contextmanager
def evaluating(run: TrainingRun, first: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Evaluate the run every `evaluation.every` steps, if set, while the block runs, once `first` returns.
    The end of the block cancels a running evaluation; its samples are kept."""
    if run.config.evaluation.every is None:
        yield
        return
    live = LiveEvaluation(run)

    def evaluate_all(_: threading.Event) -> None:
        first()
        live.run()

    with background_thread("evaluation", evaluate_all, JOIN_S), closing(live):
        yield


class LiveEvaluation:
    """Evaluates one run until stopped. `calls` returns `generate` and `score`."""

    def __init__(self, run: TrainingRun, calls: Calls = application_calls) -> None:
        config = run.config
        self._run, self._config, self._calls = run, config, calls
        self._benchmark, self._folder = held_out(config.evaluation), run.folder / "evaluation"
        self._every = config.evaluation.every or config.learner.steps
        self._results: list[Result] = []
        self._passed: set[int] = set()  # skipped or failed steps: not tried again
        self._state: EvaluatorBeat = {"state": "starting"}
        self._work = Cancellable()

    def run(self) -> None:
        """Evaluate until `close` or an error, which is printed in one line."""
        with suppress(asyncio.CancelledError):
            self._work.run(self._main())

    def close(self) -> None:
        """Stop from another thread."""
        self._work.cancel()

    async def _main(self) -> None:
        client = connect_async(self._run.url)
        beating = asyncio.create_task(keep_beating(client, self._config.run.name, PART, lambda: self._state))
        try:
            await self._evaluate_all(client)
        except (HoraError, OSError, redis.exceptions.RedisError) as error:
            self._run.say(f"evaluation during training has ended: {error}")
        finally:
            await stop_beating(beating)
            await client.aclose()
        while not self._work.cancelled:  # after an error the learner still writes candidates
            # A resumed run finishes what has begun, or begins with the newest.
            newest, begun = max(candidates_in(self._run.folder), default=0), max(self._begun(), default=None)
            await asyncio.to_thread(self._promote, newest, begun)
            await asyncio.sleep(POLL_S)

    async def _evaluate_all(self, client: AsyncRedis) -> None:
        problems = await asyncio.to_thread(run_problems, self._run)
        self._results = read_run_results(self._config.evaluation, self._run.folder)
        while not self._work.cancelled:  # on Python 3.11 a Redis call may swallow a cancellation
            version = await self._version(client)
            step = self._next(version)
            self._promote(version, step)
            if step is None:
                self._state = {"state": "waiting for the next evaluation"}
                await asyncio.sleep(POLL_S)
            else:
                await self._evaluate(client, problems, step, version)

    def _next(self, version: int) -> int | None:
        done = {r.step for r in self._results} | self._passed
        last = self._config.learner.steps
        due = next_evaluation(self._every, last, version, done, self._begun())
        if due.left_out:
            self._passed.update(due.left_out)
            steps = ", ".join(map(str, due.left_out))
            self._run.say(
                f"no evaluation of step {steps}: newer weights were published before it could begin"
            )
        return due.step

    def _begun(self) -> list[int]:
        measured = {r.step for r in self._results}
        steps = range(0, self._config.learner.steps, self._every)
        return [s for s in steps if s not in measured and self._samples(s).exists()]

    async def _evaluate(self, client: AsyncRedis, problems: list[Prompt], step: int, version: int) -> None:
        """Run one evaluation to its result. An error prints one line, and training continues."""
        self._forget_newer(step, version)
        self._state = {"state": f"evaluating step {step}", "step": step}
        watching = asyncio.create_task(self._watch(client, step))
        try:
            counts = await self._draw(problems, step)
        except (HoraError, OSError) as error:
            self._passed.add(step)
            self._run.say(f"step {step} is not evaluated: {error}")
        except asyncio.CancelledError:
            self._run.say(
                f"the evaluation of step {step} ends with training, before it is complete: what it sampled "
                f"is kept in {self._samples(step)}"
            )
            raise
        else:
            self._results.append(await asyncio.to_thread(self._record, problems, step, counts))
            self._promote(await self._version(client))
        finally:
            watching.cancel()

    def _record(self, problems: list[Prompt], step: int, counts: Counts) -> Result:
        config = self._config
        name = config.run.name if step or any(counts.versions) else config.model.path
        result = result_of(config, self._benchmark, counts, problems, name, step, counts.versions)
        keep_result(self._run, result)
        return result

    async def _draw(self, problems: Sequence[Prompt], step: int) -> Counts:
        config, places = self._config, self._config.evaluation.max_sequences
        generate, score = self._calls(config, step)
        size = min(config.rollout.samples_per_request, places)

        async def behind_training(request: SamplingRequest) -> list[Completion]:
            return await generate(replace(request, priority=BELOW_TRAINING))

        return await evaluate(
            problems,
            behind_training,
            score,
            self._benchmark.samples,
            self._samples(step),
            about={"benchmark": self._benchmark.name, "step": step, **about_sampling(config)},
            seed=config.run.seed,
            truncation=config.evaluation.truncation,
            samples_per_request=size,
            in_flight=max(1, places // size) * config.generator.replicas,
            progress=self._show,
        )

    def _show(self, progress: Progress) -> None:
        done = f"{progress.done} of {progress.total} samples"
        text = f"evaluating step {self._state.get('step')}: {done}"
        self._state = {**self._state, "done": progress.done, "total": progress.total, "state": text}

    async def _watch(self, client: AsyncRedis, step: int) -> None:
        """Warn when the next evaluation becomes due, and remove obsolete candidates."""
        while self._state.get("step") == step:
            version = await self._version(client)
            self._promote(version, step)
            if is_late(self._every, step, version) and "late" not in self._state:
                late = (
                    f"the evaluation of step {step} takes longer than evaluation.every ({self._every} "
                    "steps): it is finished, the next ones are left out until then; raise evaluation.every "
                    "or evaluation.max_sequences, or lower evaluation.prompts or evaluation.samples"
                )
                self._state = {**self._state, "late": late}
                self._run.say(late)
            await asyncio.sleep(POLL_S)

    def _promote(self, version: int, under_way: int | None = None) -> None:
        learner = self._config.learner
        newest = min(version, learner.steps - 1) // self._every * self._every  # the last step's own follows
        message = promote_best(
            learner.keep_best, self._run.folder, self._results, newest_due=newest, under_way=under_way
        )
        if message:
            self._run.say(message)

    def _forget_newer(self, step: int, version: int) -> None:
        """Rename samples of versions that this run has not trained, for example after a loss of Redis."""
        path = self._samples(step)
        if path.exists() and (newest := newest_version(path)) > version:
            aside = path.with_name(f"{path.name}.older")
            path.rename(aside)
            self._run.say(
                f"{aside}: samples of version {newest}, and the newest weights are version {version}: they "
                f"come from newer weights; step {step} is sampled again"
            )

    def _samples(self, step: int) -> Path:
        return samples_file(self._folder, self._benchmark, step)

    async def _version(self, client: AsyncRedis) -> int:
        return (await read_state_async(client, self._config.run.name)).version
