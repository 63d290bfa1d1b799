"""The PyTorch worker of `uce-edge bench --compare pytorch`.

Run as a module (`python -m uce_edge_train.bench.pytorch_worker JSON`), so that no other engine is in its process. Speed
does not depend on the weights: the network is built from its name.
"""

import sys

import torch

from uce_edge.bench.job import Job, Timing
from uce_edge.bench.onnxruntime_worker import measure
from uce_edge_train import gaussianize
from uce_edge_train.networks import architectures


def work(job: Job) -> Timing:
    """Time the passes of one image, batched or in sequence."""
    if job.threads:
        torch.set_num_threads(job.threads)
    samples = job.samples or 1
    height, width, channels = job.image
    model = gaussianize(architectures.build(job.architecture, job.classes, channels)).eval()
    image = torch.rand(1, channels, height, width)
    passes = image.repeat(samples, 1, 1, 1)

    def batched() -> None:
        torch.softmax(model(passes), -1).mean(0)

    def loop() -> None:
        torch.stack([torch.softmax(model(image), -1) for _ in range(samples)]).mean(0)

    with torch.inference_mode():
        return measure(batched if job.engine == "pytorch" else loop, "PyTorch")


if __name__ == "__main__":
    print(work(Job.from_json(sys.argv[1])).to_json())
