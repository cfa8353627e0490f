"""The measurements of a study with exact curves in one compressed file, and reports of such files.

    python -m research.study.archive pack STUDY FOLDER OUT.json.xz
    python -m research.study.archive report research/results OUT

`pack` keeps of each finished cell its curves, its steps and the counts of every group, and of the first
`RATED_ARMS` arms the rate that each group was sampled with. Cells that OUT.json.xz has already stay.
`report` writes OUT/NAME.md and OUT/NAME-curves.png for each NAME.json.xz in a folder.
"""

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hora_rl.common.errors import HoraError
from research.report.curves import Curve, curve_of
from research.report.curves_report import report_curves
from research.study.cells import Study, cells, load_study
from research.study.curve_sources import CURVES

KEPT = ("step", "prompt_index", "p", "successes", "rounds", "round_hits", "prior_alpha", "prior_beta")
"""Columns of groups that others do not follow from: a group's size is G0 + Σ rounds, its hits are
successes + Σ round_hits."""
DIGITS = 5
DIGITS_OF = {"p": 3, "prior_alpha": 3, "prior_beta": 3}
"""Significant digits, by key."""
RATED_ARMS = 3
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
"""For text: 3% smaller than the preset alone."""
GROUPS, RATES = "groups.", "groups.p"
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Archive:
    """A study and its finished cells: `records[arm][seed]` holds the cell's curves and steps, and the columns
    of its groups under `groups.NAME`."""

    study: Study
    records: Mapping[str, Mapping[int, Record]]

    def curves(self) -> dict[str, dict[int, Curve]]:
        return {arm: {seed: curve_of(r) for seed, r in of.items()} for arm, of in self.records.items()}


def pack(source: str, folder: Path, out: Path) -> int:
    """Write the finished cells of the study in `folder` to `out`, with those that it has already; returns how
    many it has now. Raises HoraError where there is none, and where it holds cells of other settings."""
    study = load_study(source)
    records = _kept_before(study, out)
    for cell in cells(study, folder, loop=True):
        if (cell.folder(folder) / CURVES).exists():
            records[cell.arm][cell.seed] = _record(cell.folder(folder))
    rated = [*(study.design.first or study.arms)][:RATED_ARMS]
    for arm in study.arms.keys() - set(rated):
        for record in records[arm].values():
            record.pop(RATES, None)
    flat = {(arm, str(seed)): record for arm, of in records.items() for seed, record in of.items()}
    if not flat:
        raise HoraError(f"{folder}: holds no finished cell of {source}: nothing to keep")
    keys = dict.fromkeys(key for record in flat.values() for key in record)
    columns = {key: [record.get(key) for record in flat.values()] for key in keys}  # compress best by key
    content = {"study": study.model_dump(mode="json"), "cells": [*flat], "columns": columns}
    out.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), filters=FILTERS))
    return len(flat)


def _kept_before(study: Study, out: Path) -> dict[str, dict[int, Record]]:
    """arm -> seed -> record of the cells in `out`; none where it does not exist."""
    records: dict[str, dict[int, Record]] = {arm: {} for arm in study.arms}
    before = unpack(out) if out.exists() else Archive(study, {})
    for arm, cells_of_arm in before.records.items():
        if cells_of_arm and (before.study.set, before.study.arms[arm]) != (study.set, study.arms.get(arm)):
            raise HoraError(f"{out}: holds cells of {arm} with other settings; write to another file")
        records[arm] = dict(cells_of_arm)
    return records


def unpack(path: Path) -> Archive:
    """Raises HoraError for a file that `pack` did not write."""
    try:
        content = json.loads(lzma.decompress(path.read_bytes()))
        study, columns = Study.model_validate(content["study"]), content["columns"]
        records: dict[str, dict[int, Record]] = {arm: {} for arm in study.arms}
        for i, (arm, seed) in enumerate(content["cells"]):
            record = {key: column[i] for key, column in columns.items() if column[i] is not None}
            records[arm][int(seed)] = record
        return Archive(study, records)
    except (OSError, lzma.LZMAError, ValueError, KeyError, AttributeError) as error:
        raise HoraError(
            f"{path}: not an archive of a study ({type(error).__name__}: {error}); make one with "
            "`python -m research.study.archive pack`"
        ) from None


def report(path: Path, out: Path) -> Path:
    """Every table and the figure of one archive into `out`; returns its page."""
    archive = unpack(path)
    return report_curves(out, archive.study, archive.curves(), name=path.name.removesuffix(".json.xz"))


def _record(folder: Path) -> Record:
    """A cell's record as it is kept: floats cut, and no column of groups that follows from others."""
    record = json.loads((folder / CURVES).read_text())
    lines = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    columns = {name: [line[name] for line in lines] for name in KEPT if name in lines[0]}
    return {
        **{key: _short(value, key) for key, value in record.items()},
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
        command.add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        print(f"{pack(arguments.study, arguments.folder, arguments.out)} cells in {arguments.out}")
        return
    for path in sorted(arguments.folder.glob("*.json.xz")):
        print(report(path, arguments.out))


if __name__ == "__main__":
    main()
