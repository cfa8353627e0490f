"""The measurements of a study with exact curves in one compressed file, and every table and figure of the
reports from such files.

    python -m research.study.archive pack STUDY FOLDER OUT.json.xz
    python -m research.study.archive report research/results

`pack` keeps of each finished cell its curves, its steps and the counts of every group, and of the arms whose
mechanism is reported the rate that each group was sampled with.
Cells that OUT has already stay. `report` writes NAME.md and NAME-*.png next to each NAME.json.xz in a folder.
"""

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hora_rl.common.errors import HoraError
from hora_rl.evaluation.report.figures import save
from research.report.curves import Curve, curve_of
from research.report.curves_report import report_curves
from research.report.figures import allocation_figure, mechanism_figure
from research.report.mechanism import Groups, mechanism_table, redrawn
from research.study.cells import Study, cells, config_of, load_study
from research.study.curve_sources import CURVES

KEPT = (
    *("step", "prompt_index", "p", "successes", "rounds", "round_hits"),
    *("prior_alpha", "prior_beta"),
)
"""Columns of groups that others do not follow from: a group's size is G0 + Σ rounds, its hits are
successes + Σ round_hits."""
DIGITS = 5
DIGITS_OF = {"p": 3, "prior_alpha": 3, "prior_beta": 3}
"""Significant digits, by key: of success rates there are over a thousand a cell."""
DRAWS = 4
MOST_ARMS = 4
"""Of how many arms the mechanism is reported."""
GROUPS, RATES = "groups.", "groups.p"
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Archive:
    """A study and its finished cells: `records[arm][seed]` holds the cell's curves and steps, and the columns
    of its groups under `groups.NAME`."""

    study: Study
    records: Mapping[str, Mapping[int, Record]]

    def curves(self) -> dict[str, dict[int, Curve]]:
        return {arm: {seed: curve_of(r) for seed, r in found.items()} for arm, found in self.records.items()}

    def has_rates(self, arm: str) -> bool:
        """Whether the arm has groups, with the exact success rate of each one's prompt."""
        return bool(self.records[arm]) and all(RATES in record for record in self.records[arm].values())

    def groups(self, arm: str) -> Groups:
        """All groups of the arm, over its seeds, where they have rates."""
        records = self.records[arm].values()
        columns = {name: [x for r in records for x in r[GROUPS + name]] for name in KEPT}
        later, found = ([sum(counts) for counts in columns[name]] for name in ("rounds", "round_hits"))
        return Groups(
            batch=np.array(columns["step"]),
            p=np.array(columns["p"]),
            size=config_of(self.study, arm).rollout.pre_rollouts + np.array(later),
            hits=np.array(columns["successes"]) + np.array(found),
            prior=np.stack([columns["prior_alpha"], columns["prior_beta"]], axis=1),
        )


def pack(source: str, folder: Path, out: Path) -> int:
    """Write the finished cells of the study in `folder` to `out`, with those that it has already; returns how
    many it has now. Raises HoraError where there is none, and where it holds cells of other settings."""
    study = load_study(source)
    records = _kept_before(study, out)
    for cell in cells(study, folder, loop=True):
        if (cell.folder(folder) / CURVES).exists():
            records[cell.arm][cell.seed] = _record(cell.folder(folder))
    for arm in study.arms.keys() - set(_explained(study)):
        for record in records[arm].values():
            record.pop(RATES, None)
    flat = {(arm, str(seed)): record for arm, of in records.items() for seed, record in of.items()}
    if not flat:
        raise HoraError(f"{folder}: holds no finished cell of {source}: nothing to keep")
    keys = dict.fromkeys(key for record in flat.values() for key in record)
    columns = {key: [record.get(key) for record in flat.values()] for key in keys}  # compress best by key
    content = {"study": study.model_dump(mode="json"), "cells": [*flat], "columns": columns}
    out.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9))
    return len(flat)


def _explained(study: Study) -> list[str]:
    """The arms whose mechanism is reported."""
    return [*(study.design.first or study.arms)][:MOST_ARMS]


def _kept_before(study: Study, out: Path) -> dict[str, dict[int, Record]]:
    """arm -> seed -> record of the cells in `out`; none where it does not exist."""
    records: dict[str, dict[int, Record]] = {arm: {} for arm in study.arms}
    before = unpack(out) if out.exists() else Archive(study, {})
    for arm, found in before.records.items():
        if found and (before.study.set, before.study.arms[arm]) != (study.set, study.arms.get(arm)):
            raise HoraError(f"{out}: holds cells of {arm} with other settings; write to another file")
        records[arm] = dict(found)
    return records


def unpack(path: Path) -> Archive:
    """Raises HoraError for a file that `pack` did not write."""
    try:
        found = json.loads(lzma.decompress(path.read_bytes()))
        study, columns = Study.model_validate(found["study"]), found["columns"]
        records: dict[str, dict[int, Record]] = {arm: {} for arm in study.arms}
        for i, (arm, seed) in enumerate(found["cells"]):
            record = {key: column[i] for key, column in columns.items() if column[i] is not None}
            records[arm][int(seed)] = record
        return Archive(study, records)
    except (OSError, lzma.LZMAError, ValueError, KeyError, AttributeError) as error:
        raise HoraError(
            f"{path}: not an archive of a study ({type(error).__name__}: {error}); make one with "
            "`python -m research.study.archive pack`"
        ) from None


def report(path: Path) -> Path:
    """Every table and figure of one archive, next to it; returns its page."""
    archive, out = unpack(path), path.parent
    name = path.name.removesuffix(".json.xz")
    page = report_curves(out, archive.study, archive.curves(), name=name)
    found = {arm: archive.groups(arm) for arm in _explained(archive.study) if archive.has_rates(arm)}
    if not found:  # a run through the stack does not record the success rates of its groups
        return page
    expected = {arm: redrawn(groups, config_of(archive.study, arm), DRAWS) for arm, groups in found.items()}
    save(mechanism_figure(found, expected), out, f"{name}-mechanism")
    save(allocation_figure(found), out, f"{name}-allocation")
    page.write_text(f"{page.read_text()}\n{mechanism_table(found, expected)}", encoding="utf-8")
    return page


def _record(folder: Path) -> Record:
    """A cell's record as it is kept: floats cut, and no column of groups that follows from others."""
    found = json.loads((folder / CURVES).read_text())
    lines = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    columns = {name: [line[name] for line in lines] for name in KEPT if name in lines[0]}
    return {
        **{key: _short(value, key) for key, value in found.items()},
        **{GROUPS + name: _short(column, name) for name, column in columns.items()},
    }


def _short(value: object, key: str) -> object:
    """`value`, found under `key`, with its floats cut to significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS_OF.get(key, DIGITS)}g}")
    if isinstance(value, Mapping):
        return {name: _short(v, key if key in DIGITS_OF else name) for name, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_short(v, key) for v in value]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep the measurements of a study; report on them.")
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("pack", help="finished cells of a study into one file")
    keep.add_argument("study")
    draw = commands.add_parser("report", help="tables and figures of every archive in a folder")
    for command in (keep, draw):
        command.add_argument("folder", type=Path)
    keep.add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        print(f"{pack(arguments.study, arguments.folder, arguments.out)} cells in {arguments.out}")
        return
    for path in sorted(arguments.folder.glob("*.json.xz")):
        print(report(path))


if __name__ == "__main__":
    main()
