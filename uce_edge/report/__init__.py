"""An evaluation as one HTML file that needs nothing else."""

from typing import TYPE_CHECKING

from uce_edge import lazy

if TYPE_CHECKING:
    from uce_edge.report.page import render

__all__ = ["render"]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "uce_edge.report.page": ("render",),
    },
)
