"""Loads a `Config` from an experiment, a Serve file that holds one as its arguments, or a preset's name."""

import copy
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hora_rl.common.answer_format import instructions
from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.config.base import Scope, scope_of, section_of
from hora_rl.common.config.data import RowsConfig, is_generated
from hora_rl.common.data.table_files import READERS
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import read_yaml
from hora_rl.common.model.adapters import SETTINGS
from hora_rl.common.model.pretrained import SUFFIXES, model_folder

AnyRows = TypeVar("AnyRows", bound=RowsConfig)
AnySection = TypeVar("AnySection", bound=BaseModel)
SETS = "a JSONL, Parquet or CSV file, a Hugging Face data set, `arithmetic` or `reasoning_gym:TASK`"
ROOT = Path(__file__).resolve().parent.parent
GONE: dict[str, list[object]] = yaml.safe_load((ROOT / "common/config/gone_keys.yaml").read_text("utf-8"))
"""Keys of earlier versions: what holds now, and the values that say the same."""


def presets() -> dict[str, Path]:
    """The shipped experiments by name: files in a folder `presets` of any room."""
    return {path.stem: path for path in sorted(ROOT.glob("*/presets/*.yaml"))}


def load(source: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration in file `source`, or the preset of that name, with `section.key=value` overrides.
    Raises ConfigError with one line per unknown or invalid key."""
    path = Path(source)
    if not path.is_file():
        path = presets().get(source, path)
    try:
        raw = read_yaml(path, source)
    except FileNotFoundError:
        raise ConfigError(
            f"{source}: no such file, and not one of the presets ({', '.join(presets())})"
        ) from None
    experiment = _experiment(raw, source)
    for override in overrides:
        _override(experiment, override)
    _find_templates(experiment.get("data"), path.parent)
    return from_args(experiment, source)


def from_args(args: Mapping[str, object], source: str = "arguments") -> Config:
    """The configuration in a plain mapping. Paths to local and shipped files become absolute, and a data set
    without a system message gets the one that asks for the form of its rewards."""
    known = without_gone(args, source)
    try:
        config = Config.model_validate(known)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(source, e) for e in error.errors())) from None
    return _resolved(config)


def without_gone(args: Mapping[str, object], source: str = "arguments") -> dict[str, object]:
    """`args` without the keys of earlier versions whose value says what holds now, as in the config.yaml of
    an older run. Raises ConfigError with one line per other value."""
    kept, gone = apart_from_gone(args)
    if gone:
        refused = (f"{source}: {key}: this key is gone: {now}; remove it" for key, (_, now) in gone.items())
        raise ConfigError("\n".join(refused))
    return kept


def apart_from_gone(
    args: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, tuple[object, object]]]:
    """`args` without the keys of earlier versions; of those with another value, the value and what holds."""
    kept = copy.deepcopy(dict(args))
    data = kept.get("data")
    sources = data.get("sources") if isinstance(data, dict) else None
    of_sources = [f"data.sources.{name}." for name in sources] if isinstance(sources, dict) else []
    gone = {}
    for key, (now, *same) in GONE.items():
        for prefix in ("", *(of_sources if key.startswith("reward.") else ())):
            *path, last = f"{prefix}{key}".split(".")
            section: object = kept
            for name in path:
                section = section.get(name) if isinstance(section, dict) else None
            if not isinstance(section, dict) or last not in section:
                continue
            value = section.pop(last)
            if not any(_same(value, other) for other in same):
                gone[f"{prefix}{key}"] = (value, now)
    return kept, gone


def _same(value: object, other: object) -> bool:
    """Whether `value` is `other`, or a section with no key that differs from it."""
    if isinstance(value, dict) and isinstance(other, dict):
        return all(key in other and other[key] == item for key, item in value.items())
    return value == other


def check_paths(config: Config) -> None:
    """Raise ConfigError if a local model folder or data file is missing, or no data set is named."""
    if not config.data.path and not config.data.sources:
        raise ConfigError("data.path is required: name a data set, or several in data.sources")
    model, state, features = config.model.path, config.allocation.prior_state, config.allocation.features
    sources = {f"data.sources.{name}.path": source.path for name, source in config.data.sources.items()}
    for key, path, remedy in (
        ("model.path", model, "name a Hugging Face folder or hub name such as Qwen/Qwen2.5-3B"),
        *((key, path, f"name {SETS}") for key, path in (sources or {"data.path": config.data.path}).items()),
        ("allocation.prior_state", state, "make it: python -m hora_rl.deploy.fit_prior"),
        ("allocation.features", features, "name a sentence-embedding model, by folder or hub name"),
    ):
        if path is not None and _looks_local(path) and not Path(path).exists():
            raise ConfigError(f"{key} ({path}): no such file or folder; {remedy}")
    if _looks_local(model) and not (Path(model) / "config.json").is_file():
        merge = ": it is an adapter, to be merged into its base" * (Path(model) / SETTINGS).is_file()
        raise ConfigError(
            f"model.path ({model}): holds no config.json, so it is no Hugging Face model{merge}"
        )


def differences(
    a: Config | Mapping[str, object], b: Config | Mapping[str, object], *, below: Scope | None = None
) -> list[str]:
    """`section.key: one != other` for every value that differs. `below`: only keys of a narrower scope."""
    left, right = _flat(_plain(a)), _flat(_plain(b))
    return [
        f"{key}: {left.get(key)!r} != {right.get(key)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key) and (below is None or scope_of(Config, key) < below)
    ]


def differing(configs: Sequence[Mapping[str, object]]) -> list[tuple[str, list[object]]]:
    """(key, values) for every section.key whose value is not the same in all configurations."""
    flat = [_flat(_plain(config)) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, [each.get(key) for each in flat]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def dump_yaml(config: Config, *, written: bool = False) -> str:
    """The configuration as YAML; with `written` only keys that were set (`run.resources: auto` sets the
    rest)."""
    plain = config.model_dump(mode="json", exclude_unset=True) if written else _plain(config)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _experiment(raw: object, source: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{source}: must hold sections such as model: and rollout:, not {type(raw).__name__}"
        )
    if "applications" not in raw:
        return raw
    applications = raw["applications"]
    if not (isinstance(applications, list) and applications and isinstance(applications[0], dict)):
        raise ConfigError(f"{source}: applications: must list one application")
    args = applications[0].get("args")
    if not isinstance(args, dict):
        raise ConfigError(f"{source}: applications[0].args: must hold the experiment (model:, data:, …)")
    return args


def _override(experiment: dict[str, object], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {text!r}: write section.key=value, e.g. rollout.group_size=16")
    *sections, last = key.split(".")
    section: Any = experiment
    for name in sections:
        if section.get(name) is None:  # left out, or null as `learner.lora` is
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(f"override {text!r}: {name} is not a section")
    try:
        section[last] = yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"override {text!r:.80}: {value!r:.80} is not a YAML value") from None


def _find_templates(data: object, folder: Path) -> None:
    """Make paths of chat templates that are in the configuration's `folder` absolute."""
    sources = data.get("sources") if isinstance(data, dict) else None
    for rows in (data, *(sources.values() if isinstance(sources, dict) else ())):
        named = rows.get("chat_template") if isinstance(rows, dict) else None
        if isinstance(named, str) and "{" not in named and (folder / named).is_file():
            rows["chat_template"] = str((folder / named).absolute())


def _line(source: str, error: ErrorDetails) -> str:
    path = ".".join(str(p) for p in error["loc"]) or "configuration"
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        near = difflib.get_close_matches(key, _known(error["loc"][:-1]), n=1)
        return f"{source}: {path}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    if error["type"] == "missing":
        return f"{source}: {path}: is required"
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and isinstance(error["input"], dict):
        # A check across keys names them itself.
        return f"{source}: {reason}"
    return f"{source}: {path} ({error['input']!r}): {reason}"


def _known(location: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] | None = Config
    for part in location:
        field = model.model_fields.get(str(part)) if model is not None else None
        model = section_of(field.annotation) if field is not None else None
    return [] if model is None else list(model.model_fields)


def _resolved(config: Config) -> Config:
    """Absolute local paths, because workers run elsewhere; shipped files; the system messages."""
    model = _with_path(_with_path(config.model), "adapter")
    sections: dict[str, object] = {
        "model": model.model_copy(update={"path": model_folder(model.path)}),
        "data": _with_message(_with_path(config.data), config.reward),
        "evaluation": _with_path(config.evaluation),
    }
    if config.data.sources:
        sources = {
            name: _with_message(_with_path(source), source.reward or config.reward)
            for name, source in config.data.sources.items()
        }
        sections["data"] = config.data.model_copy(update={"sources": sources})
    allocation = _with_path(_with_path(config.allocation, "features"), "prior_state")
    if allocation is not config.allocation:
        sections["allocation"] = allocation
    return config.model_copy(update=sections)


def _with_message(rows: AnyRows, reward: RewardConfig) -> AnyRows:
    """`rows` with a system message that asks for the form `reward` reads, which otherwise would all be 0.
    Unchanged if the user set one, or wrote the prompt's words."""
    message = instructions(reward.answer, reward.names)
    if "system" in rows.model_fields_set or message is None or not rows.in_plain_words:
        return rows
    return rows.model_copy(update={"system": message})


def _with_path(section: AnySection, key: str = "path") -> AnySection:
    """`section` with an absolute path. A `path` or `features` may be a hub name, which stays as it is."""
    path = getattr(section, key)
    local = path and (key not in ("path", "features") or _looks_local(path))
    if not local:
        return section
    here, shipped = Path(path).expanduser(), ROOT / path
    absolute = (shipped if not here.exists() and shipped.exists() else here).absolute()
    return section.model_copy(update={key: str(absolute)})


def _looks_local(path: str) -> bool:
    """Whether `path` is on disk, not `org/name` on the hub or a generated data set. An existing local path
    takes precedence over the hub, as in `transformers`."""
    return (
        path.startswith((".", "/", "~"))
        or path.count("/") > 1
        or path.endswith((*READERS, *SUFFIXES))
        or (bool(path) and not is_generated(path) and Path(path).exists())
    )


def _plain(config: Config | Mapping[str, object]) -> dict[str, object]:
    return config.model_dump(mode="json") if isinstance(config, Config) else json.loads(json.dumps(config))


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
