"""A network by its name as a file whose noise is the runtime's own: what `uce-edge bench --compare naive` measures.

Run as a module: `python -m uce_edge_train.naive JSON`.
"""

import sys

from uce_edge.bench.job import Job
from uce_edge.contract import NoiseKind
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_train import architectures, gaussianize
from uce_edge_train.export import export_module


def write(job: Job) -> None:
    """Write the file at the path of the job."""
    model = gaussianize(architectures.build(job.architecture, job.classes, job.image[2]))
    classes = tuple(str(i) for i in range(job.classes))
    spec = ImageSpec(*job.image, dtype=job.dtype)
    export_module(model, Metadata(classes, spec, noise=NoiseKind.RANDN), job.path)


if __name__ == "__main__":
    write(Job.from_json(sys.argv[1]))
