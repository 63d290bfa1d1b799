"""Labelled images: read from wherever they lie, and cut into splits that never change.

    from uce_edge import datasets
    dataset = datasets.load("photos/")
    dataset.splits["calibration"].images

`labelled` has the images for a model that exists already. Nothing here needs torch. A new kind of file is one module in
`formats`, and a new dataset with a name one in `named`.
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
