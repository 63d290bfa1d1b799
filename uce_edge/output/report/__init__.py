"""Render an evaluation as one self-contained HTML file."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge.output.report.page import render

__all__ = ["render"]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge.output.report.page": ("render",),
    },
)
