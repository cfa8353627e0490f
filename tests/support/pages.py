"""Blocks of a page of the documentation, to be run as a reader would."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^[^\n]*`(?P<file>[\w./-]+)`:\n\n)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```",
    re.M | re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of `page`, number `number` from 0. `file` is the name that the line before gives it:
    "Save this as `my_reward.py`:"."""

    page: str
    number: int
    kind: str
    text: str
    file: str | None

    @property
    def name(self) -> str:
        return f"{self.page}[{self.number}]"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of the page of this path from the root of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = enumerate(_BLOCK.finditer(text))
    return [Block(page, i, of["kind"], textwrap.dedent(of["text"]), of["file"]) for i, of in found]


def commands(block: Block) -> list[str]:
    """The lines of a shell block without comments; lines that end in a backslash are joined, and a
    here-document is one with its command."""
    lines, held = [], ""
    end = None
    for line in block.text.splitlines():
        held += ("\n" if held else "") + line
        if end is not None:
            if line != end:
                continue
            end = None
        elif opened := re.search(r"<<'?(\w+)'?", line):
            end = opened[1]
            continue
        elif line.endswith("\\"):
            held = held[:-1]
            continue
        command = held if "\n" in held else re.sub(r"\s+#.*", "", held).strip()
        held = ""
        if command and not command.startswith("#"):
            lines.append(command)
    return lines
