"""The report of a study of curves: who is compared with whom, on which seeds, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hora_rl.evaluation.run_folders import RunFolderError
from research.report.curves import Rules, compare, load_curve
from research.report.curves_report import write_curves_report

RULES = Rules((("more", "base"), ("same", "base")), ("more is better",), "held-out", 16, 0.02, ("none",))
STEPS = (0, 3, 6, 9)


def write_cell(path: Path, seed: int, gain: float) -> Path:
    """A cell whose Pass@16 on held-out prompts is `gain` above one that all arms of this seed share."""
    noise = np.random.default_rng(seed).normal(0, 0.05)
    fixed = {"pass@256": 0.9, "ways": 1.0}
    points = [
        {"step": s, "pass@1": 0.2 + 0.02 * s, "pass@16": 0.5 + 0.03 * s + noise + gain, **fixed}
        for s in STEPS
    ]
    training = [{"step": s, "hits": 0.7, "signal": 0.5, "tokens": 900.0, "entropy": 1.0} for s in range(9)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"curves": {"trained": points, "held-out": points}, "steps": training}))
    return path


@pytest.fixture
def cells(tmp_path: Path) -> dict[str, dict[int, Path]]:
    def write(arm: str, seed: int) -> Path:
        gain = 0.04 + 0.001 * seed if arm == "more" else 0.0
        return write_cell(tmp_path / f"{arm}-{seed}.json", seed, gain)

    return {arm: {seed: write(arm, seed) for seed in range(5)} for arm in ("base", "more", "same")}


def test_noise_that_all_arms_of_a_seed_share_is_no_part_of_a_difference(
    cells: dict[str, dict[int, Path]],
) -> None:
    curves = {arm: {s: load_curve(p) for s, p in seeds.items()} for arm, seeds in cells.items()}
    more, same = compare(curves, RULES)
    assert more.primary.value == pytest.approx(0.042)
    assert more.primary.low > 0.04
    assert more.corrected == pytest.approx(2 * more.primary.p)
    assert same.primary.value == pytest.approx(0.0)
    assert same.corrected == 1.0
    assert more.matched is not None
    assert more.matched.value == pytest.approx(0.042)


def test_the_page_says_first_what_was_written_down_and_names_what_is_missing(
    cells: dict[str, dict[int, Path]], tmp_path: Path
) -> None:
    cells["more"][4].unlink()
    text = write_curves_report(tmp_path / "report", "A study", cells, RULES).read_text()
    assert text.index("Written down before it ran") < text.index("more is better") < text.index("Comparisons")
    assert "Seeds missing: more (4 of 5)" in text
    for name in ("curves", "frontier", "forest", "power"):
        assert (tmp_path / "report" / f"{name}.png").stat().st_size > 5000


def test_an_exploratory_comparison_is_apart_and_uncorrected(
    cells: dict[str, dict[int, Path]], tmp_path: Path
) -> None:
    rules = replace(RULES, comparisons=(("same", "base"),), exploratory=(("more", "base"),))
    text = write_curves_report(tmp_path / "report", "A study", cells, rules).read_text()
    assert text.index("Exploratory comparisons") < text.index("| more | base | 5 | +4.2")
    assert "Holm over 1 comparisons" in text
    assert "| more | base | 5 | +4.2 ± 0.2 | — |" in text


def test_what_cannot_be_compared_is_one_line(cells: dict[str, dict[int, Path]], tmp_path: Path) -> None:
    other = Rules(RULES.comparisons, (), "transfer", 16, 0.02, ())
    with pytest.raises(RunFolderError, match=r"design\.watched \(transfer\) is none of the sets \(trained,"):
        write_curves_report(tmp_path / "report", "A study", cells, other)
    for path in cells["base"].values():
        path.unlink()
    with pytest.raises(RunFolderError, match="no comparison has a finished seed in common"):
        write_curves_report(tmp_path / "report", "A study", cells, RULES)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(RunFolderError, match=r"broken\.json: holds no curves"):
        load_curve(broken)
