"""The file that `uce-edge bench --compare naive` measures.

Its noise comes from the runtime's own random operators.

Run as a module: `python -m uce_edge_train.bench.runtime_noise JSON`.
"""

import sys

from uce_edge.bench.job import Job
from uce_edge.contract import NoiseKind
from uce_edge.metadata import ImageSpec
from uce_edge_export.options import FileKind
from uce_edge_train.networks.untrained import export_untrained


def write(job: Job) -> None:
    """Write the file at the path of the job."""
    spec = ImageSpec(*job.image, dtype=job.dtype)
    export_untrained(job.architecture, job.path, FileKind(noise=NoiseKind.RANDN), classes=job.classes, image=spec)


if __name__ == "__main__":
    write(Job.from_json(sys.argv[1]))
