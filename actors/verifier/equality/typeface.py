r"""Removes typeface, size and colour: `\mathbf{13}`, `{\color{red}\large 13}` and `\text{13}` are `13`.

Words of a text command stay one: `5\text{ apples}`, `\mathrm{cm}^2`, `\textsf{(B)}`. All functions take
linear time and are safe on hostile text."""

import re

from hora_rl.actors.verifier.equality.notation import FUNCTIONS, MATHS, NATIVE, TEXT, table
from hora_rl.actors.verifier.equality.unit_table import unit_named

_COMMANDS = table("typeface.yaml")
_ARGUMENTS = {name: count for count, names in _COMMANDS["arguments"].items() for name in names.split()}
"""Command -> number of arguments before its content."""
_UPRIGHT = frozenset(_COMMANDS["texts"].split())
"""Commands whose argument may be words."""
_HIDDEN = frozenset(_COMMANDS["hidden"].split())
_CONSTANTS: dict[str, str] = _COMMANDS["constants"]
_ALL = {*_COMMANDS["fonts"].split(), *_ARGUMENTS, *_UPRIGHT, *_HIDDEN, *_CONSTANTS}

_STYLED = re.compile(rf"\\(?:{'|'.join(sorted(_ALL, key=len, reverse=True))})(?![A-Za-z])")
_PIECE = re.compile(r"\\[A-Za-z]+(?:\*(?=\s*\{))?|\\.|[{}]|[^\\{}]+|\\", re.DOTALL)
_ARGUMENT = r"\s*(?:\[[^][]*\]\s*)?"
_GROUP = re.compile(_ARGUMENT + r"\{[^{}]*\}")
_OPEN = re.compile(_ARGUMENT + r"\{")
_KEPT = re.compile(TEXT + r"\{")
_NESTED = re.compile(rf"\s*{TEXT}\{{[^{{}}]*\}}\s*")
_POWER_OF_UNIT = re.compile(r"\$?\^\s*\{?\s*(-?\d)\s*\}?\$?(?![\d}])")
_UNIT = rf"\s*\{{\s*{TEXT}\{{\s*([A-Za-z]+)\s*(\^\{{?[23]\}}?)?\s*\}}(\^\{{?[23]\}}?)?\s*\}}"
_QUOTIENT = re.compile(rf"\\[dt]?frac{_UNIT}{_UNIT}")
_HTML = re.compile(r"<(b|strong|i|em|u|span|font|mark|code)(\s[^<>]*)?>([^<>]*)</\1>")
_FORMULA = re.compile(r"(?<!\\)(?:\$|\\[()])")

_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_LETTERS = re.compile(r"[^\W\d_]+")
_INDEX = re.compile(r"[\^_]\s*\{?\s*-?\d+\s*\}?")
_NAME_WITH_DIGITS = re.compile(rf"(?<![\d.])(?!{NATIVE})[^\W\d_]\d(?!\w*_)|\d(?![eE]\d)[^\W\d_]+\d|:\d")
_COUNTED = re.compile(
    rf"[\s$-]*{NATIVE}{{0,2}}\s*(?:\d(?:[\d,./'’_]|\s(?=\d))*(?:[eE][+-]?\d+)?|\\[dt]?frac\{{\d+\}}\{{\d+\}})"
    rf"\s*(?:(?:[^\W\d_]{{3,20}}|{NATIVE}{{1,20}})\.?\s*){{1,3}}"
)
_AFTER_VALUE = re.compile(r"(?:[\d})\]/]|\\cdot)(?:\\[,;:! ]|~|\s)*$")
_NEEDS_GROUP = re.compile(r"(?:[\^_}]|\\[A-Za-z]+)\s*$")
_LETTER_NUMBERS = frozenset("ijeknxyzdπ")
"""Letters that are no unit."""
_SPACES = re.compile(r"\\[,;: ]|~")


def untypeset(text: str) -> str:
    r"""The text without typeface, size and colour commands. Words in a text command keep it."""
    if "<" in text:
        text = _HTML.sub(r"\3", text)
    return _Reader(_QUOTIENT.sub(_quotient, text)).all() if _STYLED.search(text) else text


def _quotient(match: re.Match[str]) -> str:
    r"""`\frac{\text{m}}{\text{s}}` -> `\text{m/s}`, if both are units."""
    top, bottom = match[1], match[4]
    powers = match[2] or match[3] or "", match[5] or match[6] or ""
    units = unit_named(top) and unit_named(bottom)
    return rf"\text{{{top}}}{powers[0]}/\text{{{bottom}}}{powers[1]}" if units else match[0]


class _Group:
    """An open brace: its command (`{` for none), the source of both, and the pieces in it."""

    def __init__(self, command: str, source: str) -> None:
        self.command = command
        self.source = source
        self.pieces: list[str] = []


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._groups = [_Group("", "")]

    def all(self) -> str:
        at = 0
        while at < len(self._text):
            piece = _PIECE.match(self._text, at)
            at = self._read(piece[0], piece.end()) if piece else at + 1
        while len(self._groups) > 1:  # not closed: as it was
            open_ = self._groups.pop()
            self._add(open_.source + "".join(open_.pieces))
        return "".join(self._groups[0].pieces)

    def _read(self, piece: str, at: int) -> int:
        """Take one piece that ends at `at`; returns where the next begins."""
        name = piece[1:].rstrip("*")
        if piece == "{":
            self._groups.append(_Group("{", "{"))
        elif piece == "}" and len(self._groups) > 1:
            self._close()
        elif piece[0] != "\\" or name not in _ALL:
            self._add(piece)
        else:
            return self._command(name, piece, at)
        return at

    def _command(self, name: str, piece: str, at: int) -> int:
        start = at
        for _ in range(_ARGUMENTS.get(name, 0)):
            if argument := _GROUP.match(self._text, at):
                at = argument.end()
        if name in _CONSTANTS:
            self._add(_CONSTANTS[name])
        elif name in _HIDDEN:
            hidden = _GROUP.match(self._text, at)
            at = hidden.end() if hidden else at
            self._add(r"\,")
        elif opening := _OPEN.match(self._text, at):
            at = opening.end()
            self._groups.append(_Group(name, piece + self._text[start:at]))
        elif self._groups[-1].command == "{" and not any(map(str.strip, self._groups[-1].pieces)):
            self._groups[-1].command = name  # `{\bf 13}` is `\bf{13}`
        else:
            self._add(" ")
        return at

    def _close(self) -> None:
        group = self._groups.pop()
        content = "".join(group.pieces)
        if group.command in _UPRIGHT:
            content = _SPACES.sub(" ", content)
            if _NESTED.fullmatch(content) or not content.strip(" .,;:"):
                self._add(content)
                return
        if group.command == "{":
            self._add("{" + content + "}")
            return
        before = "".join(piece[-30:] for piece in self._groups[-1].pieces[-3:])
        if group.command in _UPRIGHT and _is_text(content, before):
            opening = group.source if _KEPT.match(group.source) else r"\text{"
            content = _POWER_OF_UNIT.sub(
                r"}^{\1}\\text{", content
            )  # `\mathrm{m\,s^{-1}}` is `\mathrm{m s}^{-1}`
            self._add(f"{opening}{content}}}".replace(r"\text{}", ""))
        else:
            self._add(_fitted(_FORMULA.sub("", content), before))

    def _add(self, piece: str) -> None:
        self._groups[-1].pieces.append(piece)


def _fitted(content: str, before: str) -> str:
    """Mathematics put where its command stood: in braces if it is an argument, apart from words before it."""
    content = content.strip()
    if _NEEDS_GROUP.search(before):
        return "{" + content + "}"
    first, last = _LETTERS.match(content), _COMMAND.findall(content)
    words = first and (len(first[0]) > 1 or first[0] in "eE")  # `2\mathrm{e}-3` is no `2e-3`
    ends = (last and content.endswith(last[-1]) and last[-1][1:].isalpha()) or content in MATHS
    return f"{' ' if words and before[-1:].isalnum() else ''}{content}{' ' if ends else ''}"


def _is_text(content: str, before: str) -> bool:
    """Whether the content of an upright command is words or a unit, not a value."""
    plain = _COMMAND.sub(" ", content)
    runs = _LETTERS.findall(plain)
    if not runs or content.strip() in (FUNCTIONS | {"pi", "infinity", "inf"}):
        return False
    if any(char.isdigit() for char in _INDEX.sub("", plain)):
        if _NAME_WITH_DIGITS.search(_INDEX.sub("", plain)):
            return True
        flat = plain.translate({123: None, 125: None})  # of `18\text{ dollars}`
        value = all(len(run) == 1 or run in MATHS or run == "or" or unit_named(run) for run in runs)
        return not (value or _COUNTED.fullmatch(content) or _COUNTED.fullmatch(flat))
    if max(map(len, runs)) > 1:
        return True
    if _AFTER_VALUE.search(before):
        return not _LETTER_NUMBERS.issuperset(runs)
    return content.strip() != runs[0] and "(" in content and len(runs) == 1
