"""Find a font for a text, because Pillow's font covers English only."""

import functools
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from PIL import ImageFont

__all__ = ["drawable", "font_for"]

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Fonts with many glyphs, which are tried first.
_PREFERRED = (
    "notosanscjk", "sourcehansans", "wqy-", "droidsansfallback", "pingfang", "hiragino", "applesdgothic",
    "arial unicode", "arialuni", "msyh", "yugoth", "meiryo", "malgun", "simsun", "dejavusans", "notosans-",
    "liberationsans",
)  # fmt: skip
_ENDINGS = (".ttf", ".ttc", ".otf")
_LAST_RESORT = "lastresort"
"""A font of placeholder boxes."""
_NO_LETTER = "\U0010ffff"
"""A code without a glyph: every font draws its placeholder box."""


def font_for(text: str, points: int) -> Font | None:
    """A font with every letter of a text; None if there is none.

    Args:
        text: The text to draw.
        points: The font size.
    """
    own = ImageFont.load_default(points)
    letters = frozenset(letter for letter in text if not letter.isspace())
    if letters <= frozenset(map(chr, range(0x21, 0x7F))) or _draws(own, letters):
        return own
    path = _with_letters(letters)
    return None if path is None else ImageFont.truetype(path, points)


def drawable(text: str, fallback: str) -> str:
    """A text that some font can draw: unchanged, without accents, or the fallback."""
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return next((words for words in (text, plain) if font_for(words, 16)), fallback)


@functools.cache
def _with_letters(letters: frozenset[str]) -> str | None:
    """The file of a font with these letters."""
    for path in _installed():
        try:
            if _draws(ImageFont.truetype(path, 16), letters):
                return path
        except (OSError, ValueError):  # not a scalable font
            continue
    return None


@functools.cache
def _installed() -> tuple[str, ...]:
    """The fonts of this system, preferred ones first."""
    found = {str(path) for folder in _folders() for path in _files(folder)}
    return tuple(sorted(found, key=lambda path: (_rank(Path(path).name.lower()), path)))


def _rank(name: str) -> tuple[bool, int]:
    is_plain = not any(style in name for style in ("bold", "italic", "oblique", "black", "light", "thin", "mono"))
    return not is_plain, next((i for i, start in enumerate(_PREFERRED) if name.startswith(start)), len(_PREFERRED))


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):  # skips unreadable folders
        usable = (name for name in names if name.lower().endswith(_ENDINGS) and _LAST_RESORT not in name.lower())
        yield from (Path(place, name) for name in usable)


def _folders() -> list[Path]:
    """The font folders of this system."""
    home = Path.home()
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", "C:/Windows"), "Fonts"), home / "AppData/Local/Microsoft/Windows/Fonts"]
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    return [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".local/share/fonts", home / ".fonts"]


def _draws(font: Font, letters: frozenset[str]) -> bool:
    """Whether a font has every letter, and draws none as its box."""
    box = _drawn(font, _NO_LETTER)
    return all(_drawn(font, letter) != box for letter in letters)


def _drawn(font: Font, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)
