"""Run, model and data set."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from common.config.base import Count, Section


class Run(Section):
    """Who this run is and where it writes."""

    name: str = Field(
        "hora",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the run: its folder and its Redis keys.",
    )
    folder: str = Field("runs", description="Folder that holds one folder per run.")
    resources: Literal["auto", "manual"] = Field(
        "auto",
        description="auto: `hora run` chooses replicas, ranks, shares of cards and KV cache for the GPUs of "
        "this machine, except keys that are set; manual: keys that are not set have their defaults.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of data order, sampling and training.")


class Model(Section):
    path: str = Field(description="Hugging Face folder or hub name of the initial policy.")
    adapter: str | None = Field(
        None,
        description="Folder of a LoRA adapter (peft) that is served with the model, in `hora eval` and `hora "
        "sample`; training starts from a merged model.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="Precision of weights, in generator and learner."
    )
    trust_remote_code: bool = Field(
        False, description="Run code that ships inside the model folder. Off unless you trust it."
    )


class Data(Section):
    path: str = Field(description="JSONL file, Hugging Face data set name, or `arithmetic`.")
    split: str = Field("train", description="Split, for Hugging Face data sets.")
    prompt_field: str = Field("problem", description="Column of the problem.")
    answer_field: str = Field("answer", description="Column of the gold answer.")
    limit: Count | None = Field(None, description="Use the first so many rows only.")
    system: str | None = Field(
        None,
        description="System message of the chat template. Left out: one that asks for what the rewards look "
        "for, unless `template` is yours or the data is `arithmetic`. null: the template's own.",
    )
    template: str = Field("{problem}", description="Text of the user message; {problem} is replaced.")
    chat: bool = Field(True, description="Render through the tokenizer's chat template.")
    shuffle: bool = Field(True, description="New order each epoch, pure in seed and epoch.")
    benchmarks: tuple[str, ...] = Field(
        (), description="JSONL benchmark files the training prompts are checked against for leaks."
    )

    @property
    def in_plain_words(self) -> bool:
        """Whether the prompt is the problem alone: neither the user's own template nor the demo's task, whose
        form is its own."""
        return self.template == "{problem}" and self.path.split(":")[0] != "arithmetic"

    @field_validator("template")
    @classmethod
    def _has_problem(cls, value: str) -> str:
        if "{problem}" not in value:
            raise ValueError("must contain {problem}, the place where the problem goes")
        return value
