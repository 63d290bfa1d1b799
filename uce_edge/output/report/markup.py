"""HTML and SVG as text in which everything that is not markup already is escaped.

Class names and paths are a user's own words and end up in the page: forgetting to escape must not be possible.
"""

from collections.abc import Iterable
from html import escape

from uce_edge._util.printable import shown

_VOID = frozenset({"br", "img", "meta"})


class Markup(str):
    """Text that is markup; all other text is escaped where it is put into an element."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """One element with its children.

    Args:
        tag: Its name.
        *children: `Markup` as it is, everything else escaped; None and False leave nothing.
        **attributes: `class_` is class, `stroke_width` is stroke-width; None leaves an attribute out.
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
    """Several pieces behind one another, escaped unless they are markup."""
    return Markup("".join(_content(part) for part in parts))


def _content(part: object) -> str:
    if part is None or part is False:
        return ""
    if isinstance(part, Markup):
        return part
    # A percent sign stays with its number at the end of a line.
    return escape(_plain(part), quote=False).replace(" %", "\N{NO-BREAK SPACE}%")


def _plain(value: object) -> str:
    """Coordinates with two decimals: more cannot be seen, and make the file larger."""
    if not isinstance(value, float):
        return shown(str(value))  # XML knows no control characters, and names may reorder a page
    return f"{value:.2f}".rstrip("0").rstrip(".")


def numbered(name: str, number: int) -> str:
    """The id of a thing of which a page may have several; the first keeps the name."""
    return name if number == 0 else f"{name}-{number + 1}"
