"""How long PyTorch takes for the passes of one image: the worker that `uce-edge bench --compare pytorch` starts.

Run as a module (`python -m uce_edge_train.timing JSON`), so that no other engine is in its process. Speed does not
depend on the weights: the network is built from its name.
"""

import json
import sys
from typing import Any

import torch

from uce_edge.bench import measure
from uce_edge_train import architectures, gaussianize


def _work(job: dict[str, Any]) -> dict[str, Any]:
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    height, width, channels = job["image"]
    model = gaussianize(architectures.build(job["architecture"], job["classes"], channels)).eval()
    image = torch.rand(1, channels, height, width)
    passes = image.repeat(job["samples"], 1, 1, 1)

    def batched() -> None:
        torch.softmax(model(passes), -1).mean(0)

    def loop() -> None:
        torch.stack([torch.softmax(model(image), -1) for _ in range(job["samples"])]).mean(0)

    with torch.inference_mode():
        return measure(batched if job["engine"] == "pytorch" else loop)


if __name__ == "__main__":
    print(json.dumps(_work(json.loads(sys.argv[1]))))
