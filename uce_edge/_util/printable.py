"""Escape untrusted text for terminals and tables."""

import re

__all__ = ["cell", "shown"]

# Controls and line ends, marks that reorder or hide text, and halves of characters (bytes of a name that are no UTF-8).
# The joiners U+200C and U+200D stay: Persian and emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?[0-9.]*")


def shown(text: str) -> str:
    r"""A text as one printable line.

    A newline becomes `\n`, an escape `\x1b`, a byte that is not UTF-8 `\xff`.
    """
    return text if text.isascii() and text.isprintable() else _HIDDEN.sub(_escaped, text)


def cell(value: object) -> object:
    """A value for CSV; formulas get an apostrophe."""
    if not isinstance(value, str):
        return value
    text = shown(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Python keeps the byte 0xff of a file name as U+DCFF.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else found[0].encode("unicode_escape").decode()
