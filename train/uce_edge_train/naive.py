"""A network by its name as a file whose noise is the runtime's own: what `uce-edge bench --compare naive` measures.

Run as a module: `python -m uce_edge_train.naive JSON`.
"""

import json
import sys
from typing import Any

from uce_edge.contract import NoiseKind
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_train import architectures, gaussianize
from uce_edge_train.export import export_module


def _work(job: dict[str, Any]) -> None:
    model = gaussianize(architectures.build(job["architecture"], job["classes"], job["image"][2]))
    classes = tuple(str(i) for i in range(job["classes"]))
    export_module(model, Metadata(classes, ImageSpec(*job["image"]), noise=NoiseKind.RANDN), job["out"])


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
