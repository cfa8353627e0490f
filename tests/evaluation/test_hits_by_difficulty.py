"""What the report says of prompts with a hit: expected and realised shares of runs whose rates are drawn from
the prior itself."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import betabinom

from hora_rl.allocator import Session
from hora_rl.evaluation.report.hits import HitRow, hits_by_difficulty, promise
from hora_rl.evaluation.report.runs_report import write_report
from hora_rl.evaluation.run_folders import Run

G0, G, N = 4, 16, 12


def drawn_run(rounds: int, stop: str, shards: int, truth: tuple[float, float] = (1.0, 1.0)) -> Run:
    """Groups of a run with the prior Beta(1, 1) whose rates are Beta(*truth)."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[int]] = {name: [] for name in ("successes", "trials", "size", "hits")}
    of_rounds = []
    for _ in range(shards):
        p = rng.beta(*truth, N)
        session, mine = Session(N, N * (G - G0), rounds=rounds, stop=stop), [[] for _ in range(N)]
        c = rng.binomial(G0, p)
        session.tell(c, G0)
        while not session.done:
            extra = session.ask()
            hits = rng.binomial(extra, p)
            session.tell(hits, extra)
            for i in range(N):
                mine[i].append((int(extra[i]), int(hits[i])))
        columns["successes"] += c.tolist()
        columns["trials"] += [G0] * N
        columns["size"] += session.trials.tolist()
        columns["hits"] += session.successes.tolist()
        of_rounds += [tuple(m) for m in mine]
    n = len(of_rounds)
    return Run(
        name="r",
        config={},
        groups={name: np.array(values, dtype=float) for name, values in columns.items()},
        rules=np.array(["hit_utility"] * n),
        priors=((1.0, 1.0),) * n,
        rounds=tuple(of_rounds),
        steps={},
        results=(),
    )


def test_a_round_is_promised_the_beta_binomial_and_one_after_a_hit_nothing_more() -> None:
    assert promise(1.0, 5.0, [(20, 0)]) == pytest.approx(1 - betabinom.pmf(0, 20, 1.0, 5.0))
    once = promise(1.0, 5.0, [(4, 1)])
    assert promise(1.0, 5.0, [(4, 1), (9, 0)]) == once
    assert promise(1.0, 5.0, [(4, 0), (9, 0)]) > once


@pytest.mark.parametrize(("rounds", "stop"), [(1, "none"), (4, "hit"), (3, "mixed")])
def test_expected_and_realised_agree_where_the_prior_is_true(rounds: int, stop: str) -> None:
    rows = hits_by_difficulty(drawn_run(rounds, stop, 400))
    assert [r.title for r in rows] == ["0", "1", "2-3", "4", "all"]
    for row in rows:
        error = 4 * np.sqrt(0.25 / row.groups)
        assert abs(row.expected - row.realised) < error, row
        assert abs(row.phase_b_expected - row.phase_b_realised) < error, row
    assert rows[-1].groups == 400 * N == sum(r.groups for r in rows[:-1])
    assert rows[0].size > rows[-2].size


def test_a_wrong_prior_shows() -> None:
    run = drawn_run(1, "none", 200, truth=(0.05, 1.0))
    none: HitRow = hits_by_difficulty(run)[0]
    assert none.expected > none.realised + 0.2
    assert hits_by_difficulty(replace(run, rules=np.array([]))) == []


def test_the_report_shows_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    line = {"step": 0, "batch": 0, "shard": 0, "rule": "first_hit", "prior_alpha": 1.0, "prior_beta": 1.0}
    line |= {"trials": 4, "successes": 0, "extra": 12, "size": 16, "hits": 1, "tokens": 99}
    (folder / "groups.jsonl").write_text(json.dumps({**line, "rounds": [6, 6], "round_hits": [0, 1]}) + "\n")
    text = write_report([folder], tmp_path / "out").read_text()
    assert "Prompts with a hit: run" in text
    expected = promise(1.0, 5.0, [(6, 0), (6, 1)])
    assert f"<td>{100 * expected:.1f}%</td><td>100.0%</td>" in text
