"""Labelled images in fixed splits.

    from uce_edge import datasets
    dataset = datasets.load("photos/")
    dataset.splits["calibration"].images

`labelled` reads images for an existing model. Nothing here needs torch. To add a file format, add a module to
`formats`; to add a named dataset, add one to `named`.
"""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge.datasets.named import names
    from uce_edge.datasets.sources import SkippedImagesWarning, Source, UngroupedWarning
    from uce_edge.datasets.splits import Dataset, Split, load

__all__ = ["Dataset", "SkippedImagesWarning", "Source", "Split", "UngroupedWarning", "load", "names"]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge.datasets.named": ("names",),
        "uce_edge.datasets.sources": ("SkippedImagesWarning", "Source", "UngroupedWarning"),
        "uce_edge.datasets.splits": ("Dataset", "Split", "load"),
    },
)
