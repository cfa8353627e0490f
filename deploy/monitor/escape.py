"""Escape model output for a terminal: characters that move the cursor, hide or reorder text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

KEPT = "\n\t"
# Control characters (C0, DEL, C1), format characters (bidirectional, zero width, tags), line and paragraph
# separators, lone surrogates.
WRITTEN_OUT = ("Cc", "Cf", "Zl", "Zp", "Cs")
_PIECES = re.compile(r"[\x20-\x7e\n\t]+|.", re.DOTALL)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    r"""Split `text` into (piece, escaped): `a\x1b[2J` gives ("a", False), ("\\x1b", True), ("[2J", False)."""
    plain = ""
    for found in _PIECES.finditer(text):
        piece = found[0]
        if len(piece) == 1 and piece not in KEPT and unicodedata.category(piece) in WRITTEN_OUT:
            if plain:
                yield plain, False
            plain = ""
            yield escape(piece), True
        else:
            plain += piece
    if plain:
        yield plain, False


def visible(text: str) -> str:
    """`text` with escaped characters."""
    return "".join(piece for piece, _ in pieces(text))


def escape(character: str) -> str:
    r"""`\x1b`, `\u202e` or `\U000e0041`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
