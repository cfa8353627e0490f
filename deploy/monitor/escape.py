"""Escape model output for a terminal: characters that move the cursor, hide or reorder text."""

import itertools
import unicodedata
from collections.abc import Iterator

KEPT = "\n\t"
# Control characters (C0, DEL, C1), format characters (bidirectional, zero width, tags), line and paragraph
# separators, lone surrogates.
WRITTEN_OUT = ("Cc", "Cf", "Zl", "Zp", "Cs")


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    r"""Split `text` into (piece, escaped): `a\x1b[2J` gives ("a", False), ("\\x1b", True), ("[2J", False)."""
    for hidden, found in itertools.groupby(text, _is_hidden):
        piece = "".join(found)
        yield "".join(map(escape, piece)) if hidden else piece, hidden


def _is_hidden(character: str) -> bool:
    return character not in KEPT and unicodedata.category(character) in WRITTEN_OUT


def visible(text: str) -> str:
    """`text` with escaped characters."""
    return "".join(piece for piece, _ in pieces(text))


def escape(character: str) -> str:
    r"""`\x1b`, `\u202e` or `\U000e0041`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
