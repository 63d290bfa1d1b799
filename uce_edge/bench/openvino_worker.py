"""The worker of `uce-edge bench --compare openvino`.

Run as `python -m uce_edge.bench.openvino_worker JSON`.
"""

import sys

import numpy as np

from uce_edge import contract
from uce_edge.bench.job import Job, Timing
from uce_edge.bench.onnxruntime_worker import measure, random_images


def work(job: Job) -> Timing:
    """Time the same file in OpenVINO."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": job.threads} if job.threads else {}
    compiled = openvino.Core().compile_model(job.path, "CPU", options)
    feed = {contract.IMAGE: random_images(job)}
    if len(compiled.inputs) > 1:
        feed[contract.SEEDS] = np.arange(job.samples or 1, dtype=np.int32)
    return measure(lambda: compiled(feed), "OpenVINO")


if __name__ == "__main__":
    print(work(Job.from_json(sys.argv[1])).to_json())
