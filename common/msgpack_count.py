"""Counts the objects in a msgpack message without creating them.

An empty map takes one byte on the wire and about 80 in memory, so message length does not bound memory. Long
buffers are skipped."""

# Marks followed by a length: (bytes of the length, extra bytes, inner objects per unit of length).
_LENGTHS = {
    0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0),  # bytes
    0xC7: (1, 1, 0), 0xC8: (2, 1, 0), 0xC9: (4, 1, 0),  # extensions, with their type
    0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0),  # texts
    0xDC: (2, 0, 1), 0xDD: (4, 0, 1),  # lists
    0xDE: (2, 0, 2), 0xDF: (4, 0, 2),  # maps
}  # fmt: skip
_NUMBERS = {0xCA: 5, 0xCB: 9, **{mark: 1 + 2 ** (mark % 4) for mark in range(0xCC, 0xD4)}}
_EXTENSIONS = {mark: 2 + 2 ** (mark - 0xD4) for mark in range(0xD4, 0xD9)}


def _fixed(mark: int) -> tuple[int, int]:
    """(bytes of the object itself, number of inner objects) for an object that begins with `mark`."""
    if 0x80 <= mark < 0x90:
        return 1, 2 * (mark & 15)
    if 0x90 <= mark < 0xA0:
        return 1, mark & 15
    if 0xA0 <= mark < 0xC0:
        return 1 + (mark & 31), 0
    return _NUMBERS.get(mark) or _EXTENSIONS.get(mark) or 1, 0


_FIXED = [_fixed(mark) for mark in range(256)]


def count_objects(data: bytes, limit: int) -> int:
    """Number of objects in the first value of `data`, including itself; stops once the count exceeds `limit`.

    Truncated or invalid input is counted as far as possible; the decoder refuses it."""
    at, seen, announced, end = 0, 0, 1, len(data)
    while seen < announced <= limit and at < end:
        mark = data[at]
        seen += 1
        if mark in _LENGTHS:
            width, more, each = _LENGTHS[mark]
            length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width + (0 if each else more + length)
            announced += each * length
        else:
            size, inner = _FIXED[mark]
            at += size
            announced += inner
    return announced
