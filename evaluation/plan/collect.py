"""Count successes of training prompts for a plan, one line per prompt in a resumable file.

    missing prompts ─► hora_rl.evaluation.sample_loop.draw ─► {"id", "successes", "trials", "tokens", "about"}

A prompt is written once all its samples are counted, so an interruption loses only unfinished prompts. Each
line has its identity, so counts of two models, temperatures or sizes are never mixed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.common.types import Completion, Prompt, Scored
from hora_rl.evaluation.plan.counts import CountsError
from hora_rl.evaluation.sample_loop import Meter, Progress, Request, draw, request_seed
from hora_rl.evaluation.samples import append, cut_torn_line, fingerprint, first_difference


async def collect(
    prompts: Sequence[Prompt],
    generate: Generate,
    score: Score,
    samples: int,
    out: Path,
    *,
    about: Mapping[str, Any],
    seed: int = 0,
    samples_per_request: int = 16,
    in_flight: int = 64,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Draw `samples` completions of each prompt missing in `out`, and append the counts.

    `about` identifies the samples, as for `evaluate`. At most `in_flight` requests wait at a time. Raises
    CountsError if `out` has another identity, and any error of `generate` or `score`; finished prompts are
    kept.
    """
    identity = json.loads(json.dumps({**about, "samples": samples, "seed": seed}))
    held = _held(out, {p.index: {**identity, "prompt": fingerprint([p])} for p in prompts}, identity)
    todo = [p for p in prompts if p.index not in held]
    meter = Meter((len(prompts) - len(todo)) * samples, len(prompts) * samples, progress)
    counts = {p.index: dict.fromkeys(("successes", "trials", "tokens"), 0) for p in todo}

    def record(request: Request, completions: Sequence[Completion], scored: Sequence[Scored]) -> None:
        tokens = sum(len(c.tokens) for c in completions)
        index = request.prompt.index
        count = counts[index]
        count["successes"] += sum(s.success for s in scored)
        count["trials"] += len(completions)
        count["tokens"] += tokens
        if count["trials"] == samples:
            about = {**identity, "prompt": fingerprint([request.prompt])}
            append(out, [{"id": index, **count, "about": about}])
        meter.add(len(completions), tokens)

    requests = [
        Request(p, first, min(samples_per_request, samples - first), request_seed(seed, p.index, first))
        for p in todo
        for first in range(0, samples, samples_per_request)
    ]
    await draw(requests, generate, score, record, in_flight)


def _held(out: Path, expected: Mapping[int, Mapping[str, Any]], identity: Mapping[str, Any]) -> set[int]:
    """Prompts with counts in `out`, after cutting off a torn last line."""
    out.parent.mkdir(parents=True, exist_ok=True)
    cut_torn_line(out)
    held = set[int]()
    for number, line in enumerate(out.read_text(encoding="utf-8").splitlines() if out.exists() else (), 1):
        try:
            record = json.loads(line)
            index, held_about = int(record["id"]), dict(record["about"])
        except (ValueError, KeyError, TypeError):
            raise CountsError(
                f"{out}:{number}: not a line of `hora plan CONFIG`; choose another --out"
            ) from None
        wanted = expected.get(index, {**identity, "prompt": held_about.get("prompt")})
        if difference := first_difference(held_about, wanted):
            raise CountsError(
                f"{out}:{number}: was counted with {difference}: choose another --out, or delete the file to "
                "start again"
            )
        held.add(index)
    return held
