"""Build HTML and SVG; escape all text that is not `Markup`.

Class names and paths come from users, so that escaping must be the default.
"""

from collections.abc import Iterable
from html import escape

from uce_edge._util.printable import shown

_VOID = frozenset({"br", "img", "meta"})


class Markup(str):
    """Escaped text, which an element includes unchanged."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element with its children.

    Args:
        tag: Its name.
        *children: `Markup` is included unchanged, other values are escaped; None and False are left out.
        **attributes: `class_` is class, `stroke_width` is stroke-width; None is left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(parts: Iterable[object]) -> Markup:
    """Concatenate parts; escape all that are not `Markup`."""
    return Markup("".join(_content(part) for part in parts))


def _content(part: object) -> str:
    if part is None or part is False:
        return ""
    if isinstance(part, Markup):
        return part
    # No line break between a number and its percent sign.
    return escape(_plain(part), quote=False).replace(" %", "\N{NO-BREAK SPACE}%")


def _plain(value: object) -> str:
    """A value as text; coordinates have two decimals."""
    if not isinstance(value, float):
        return shown(str(value))  # without control characters, which XML forbids
    return f"{value:.2f}".rstrip("0").rstrip(".")


def numbered(name: str, number: int) -> str:
    """A unique id: the name, with a number from the second on."""
    return name if number == 0 else f"{name}-{number + 1}"
