"""What one would write without uce-edge: Ray Data over a PyTorch network that keeps its dropout, pass by pass.

    python benchmarks/speed/ray_baseline.py FOLDER OUT PASSES

The network is the bundled one's, with random weights: speed does not depend on them.
"""

import os
import sys
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import numpy as np
import ray
import torch

from uce_edge_train.networks.architectures import build

BATCH = 64


class Predictor:
    """An actor: a network in evaluation mode, but for its dropout."""

    def __init__(self, passes: int) -> None:
        torch.set_num_threads(1)
        self._network, self._passes = build("resnet9", 10, 3).eval(), passes
        for layer in self._network.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                layer.register_forward_pre_hook(lambda _, values: torch.nn.functional.dropout(values[0], 0.05))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        pixels = torch.from_numpy(np.stack(batch["image"])).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            passes = torch.stack([self._network(pixels).softmax(-1) for _ in range(self._passes)])
        mean = passes.mean(0)
        entropy = -(mean * mean.clamp_min(1e-12).log()).sum(-1) / np.log(mean.shape[-1])
        return {"path": batch["path"], "label": mean.argmax(-1).numpy(), "uncertainty": entropy.numpy()}


def main(folder: str, out: str, passes: str) -> None:
    ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    images = ray.data.read_images(folder, include_paths=True, mode="RGB", size=(32, 32))
    scored = images.map_batches(
        Predictor,
        fn_constructor_args=(int(passes),),
        batch_size=BATCH,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    scored.write_parquet(out)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
