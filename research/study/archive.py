"""What a study with exact curves measured, in one compressed file, and every table and figure of the reports
from such files.

    python -m research.study.archive pack STUDY FOLDER OUT.json.xz
    python -m research.study.archive report research/results

`pack` keeps of each finished cell its curves, its steps, the counts of every group and the success of every
prompt at the end, and of the arms whose mechanism is reported the rate that each group was sampled with.
Cells that OUT has already stay. `report` writes NAME.md and NAME-*.png beside each NAME.json.xz in a folder.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError
from hora_rl.evaluation.report.figures import save
from research.report.curves import Curve, curve_of
from research.report.curves_report import report_curves
from research.report.figures import allocation_figure, mechanism_figure
from research.report.mechanism import Groups, mechanism_table, redrawn
from research.study.cells import Study, cells, config_of, load_study
from research.study.curve_sources import CURVES

PRIOR = ("prior_alpha", "prior_beta")
KEPT = ("step", "prompt_index", "p", "successes", "rounds", "round_hits", "tokens", *PRIOR)
"""Columns of groups that others do not follow from: a group's size is G0 + Σ rounds, its hits are
successes + Σ round_hits."""
DIGITS = 5
DIGITS_OF = {"p": 3, "success": 3}
"""Significant digits, by key: of success rates there are over a thousand a cell."""
DRAWS = 4
MOST_ARMS = 4
"""Of how many arms the mechanism is reported."""
GROUPS = "groups."


@dataclass(frozen=True, slots=True)
class Archive:
    """A study and its finished cells: `records[arm][seed]` is what the cell wrote, `groups` in it columns."""

    study: Study
    records: Mapping[str, Mapping[int, Mapping[str, object]]]

    def curves(self) -> dict[str, dict[int, Curve]]:
        return {arm: {seed: curve_of(r) for seed, r in found.items()} for arm, found in self.records.items()}

    def has_rates(self, arm: str) -> bool:
        """Whether the arm has groups, with the exact success rate of each one's prompt."""
        records = self.records.get(arm, {}).values()
        return bool(records) and all("p" in r["groups"] for r in records if isinstance(r["groups"], dict))

    def groups(self, arm: str) -> Groups:
        """All groups of the arm, over its seeds, where they have rates."""
        tables = [t for r in self.records[arm].values() if isinstance(t := r["groups"], dict)]
        columns = {name: [value for t in tables for value in t[name]] for name in KEPT}
        later, found = ([sum(counts) for counts in columns[name]] for name in ("rounds", "round_hits"))
        return Groups(
            batch=np.array(columns["step"]),
            p=np.array(columns["p"]),
            size=self.config(arm).rollout.pre_rollouts + np.array(later),
            hits=np.array(columns["successes"]) + np.array(found),
            prior=np.stack([columns[name] for name in PRIOR], axis=1),
        )

    def config(self, arm: str) -> Config:
        return config_of(self.study, arm)


def pack(source: str, folder: Path, out: Path) -> int:
    """Write the finished cells of the study in `folder` to `out`, beside those that it has already; returns
    how many it has now. Raises HoraError where there is none, and where it holds cells of other settings."""
    study = load_study(source)
    records = _kept_before(study, out)
    for cell in cells(study, folder, loop=True):
        if (cell.folder(folder) / CURVES).exists():
            records[cell.arm][str(cell.seed)] = _record(cell.folder(folder))
    count = sum(map(len, records.values()))
    if not count:
        raise HoraError(f"{folder}: holds no finished cell of {source}: nothing to keep")
    content = {"study": study.model_dump(mode="json"), **_by_column(records, _explained(study))}
    text = json.dumps(content, separators=(",", ":"))
    out.write_bytes(lzma.compress(text.encode(), preset=9))
    return count


def _explained(study: Study) -> list[str]:
    """The arms whose mechanism is reported."""
    return [*(study.design.first or study.arms)][:MOST_ARMS]


def _by_column(records: Mapping[str, Mapping[str, object]], explained: Sequence[str]) -> dict[str, object]:
    """The cells' names, and what they hold by key, because like numbers side by side compress best. Rates
    stay with the `explained` arms."""
    flat = {(arm, seed): _flat(record) for arm, cells in records.items() for seed, record in cells.items()}
    for (arm, _), record in flat.items():
        if arm not in explained:
            record.pop(f"{GROUPS}p", None)
    keys = dict.fromkeys(key for record in flat.values() for key in record)
    return {"cells": [*flat], "columns": {key: [record.get(key) for record in flat.values()] for key in keys}}


def _flat(record: object) -> dict[str, object]:
    """A cell's record with the columns of its groups as keys of their own."""
    assert isinstance(record, Mapping)
    groups = record["groups"]
    columns = {f"{GROUPS}{name}": column for name, column in groups.items()} if groups else {}
    return {**{key: value for key, value in record.items() if key != "groups"}, **columns}


def _nested(flat: Mapping[str, object]) -> dict[str, object]:
    """The record of which `_flat` made this; None stands for what it did not have."""
    groups = {k.removeprefix(GROUPS): v for k, v in flat.items() if k.startswith(GROUPS) and v is not None}
    return {**{k: v for k, v in flat.items() if not k.startswith(GROUPS) and v is not None}, "groups": groups}


def _kept_before(study: Study, out: Path) -> dict[str, dict[str, object]]:
    """arm -> seed -> record of the cells in `out`; none where it does not exist."""
    records: dict[str, dict[str, object]] = {arm: {} for arm in study.arms}
    if not out.exists():
        return records
    before = unpack(out)
    changed = [
        arm
        for arm in before.records
        if before.records[arm]
        and (before.study.set, before.study.arms.get(arm)) != (study.set, study.arms.get(arm))
    ]
    if changed:
        raise HoraError(f"{out}: holds cells of {changed[0]} with other settings; write to another file")
    for arm, cells_of in before.records.items():
        records[arm] = {str(seed): _kept(record) for seed, record in cells_of.items()}
    return records


def unpack(path: Path) -> Archive:
    """Raises HoraError for a file that `pack` did not write."""
    try:
        found = json.loads(lzma.decompress(path.read_bytes()))
        study, columns = Study.model_validate(found["study"]), found["columns"]
        records: dict[str, dict[int, dict[str, object]]] = {arm: {} for arm in study.arms}
        for i, (arm, seed) in enumerate(found["cells"]):
            records[arm][int(seed)] = _nested({key: column[i] for key, column in columns.items()})
        return Archive(study, records)
    except (OSError, lzma.LZMAError, ValueError, KeyError, AttributeError) as error:
        raise HoraError(
            f"{path}: not an archive of a study ({type(error).__name__}: {error}); make one with "
            "`python -m research.study.archive pack`"
        ) from None


def report(path: Path) -> Path:
    """Every table and figure of one archive, beside it; returns its page."""
    archive, out = unpack(path), path.parent
    name = path.name.removesuffix(".json.xz")
    page = report_curves(out, archive.study, archive.curves(), name=name)
    found = {arm: archive.groups(arm) for arm in _explained(archive.study) if archive.has_rates(arm)}
    if not found:  # a run through the stack does not record the success rates of its groups
        return page
    expected = {arm: redrawn(groups, archive.config(arm), DRAWS) for arm, groups in found.items()}
    save(mechanism_figure(found, expected), out, f"{name}-mechanism")
    save(allocation_figure(found), out, f"{name}-allocation")
    page.write_text(f"{page.read_text()}\n{mechanism_table(found, expected)}", encoding="utf-8")
    return page


def _record(folder: Path) -> dict[str, object]:
    found = json.loads((folder / CURVES).read_text())
    lines = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    columns = {name: [line[name] for line in lines] for name in lines[0] if name in KEPT}
    return _kept({**found, "groups": columns})


def _kept(record: Mapping[str, object]) -> dict[str, object]:
    """A cell's record as it is kept: floats cut, and no column of groups that follows from others."""
    kept, groups = {key: _short(value, key) for key, value in record.items()}, record["groups"]
    if isinstance(groups, Mapping):
        kept["groups"] = {name: _short(groups[name], name) for name in groups if name in KEPT}
    return kept


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
    parser = argparse.ArgumentParser(description="Keep what a study in the loop measured; report on it.")
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("pack", help="finished cells of a study into one file")
    keep.add_argument("study")
    keep.add_argument("folder", type=Path)
    keep.add_argument("out", type=Path)
    tell = commands.add_parser("report", help="tables and figures of every archive in a folder")
    tell.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        print(f"{pack(arguments.study, arguments.folder, arguments.out)} cells in {arguments.out}")
        return
    for path in sorted(arguments.folder.glob("*.json.xz")):
        print(report(path))


if __name__ == "__main__":
    main()
