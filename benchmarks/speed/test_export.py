"""What does the export of a large network cost? ResNet-50, 1,000 classes, 224 x 224, in a process of its own."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

MEMORY_MIB = 2800


@pytest.mark.large
def test_export_of_resnet50(benchmark, capsys, tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path / "resnet50.onnx")]

    def export() -> dict[str, float]:
        return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    cost = benchmark.pedantic(export, rounds=1)
    benchmark.extra_info.update(cost)
    with capsys.disabled():
        print(f" peak {cost['peak_mib']:.0f} MiB of the whole process, {cost['cpu_seconds']:.0f} s of all cores")
    assert cost["difference"] <= 1e-4
    assert cost["peak_mib"] < MEMORY_MIB


def main(out: str) -> None:
    import torch

    from uce_edge.metadata import ImageSpec, Metadata
    from uce_edge_train import export_module, gaussianize
    from uce_edge_train.networks import architectures

    torch.manual_seed(0)
    network = gaussianize(architectures.build("resnet50", 1000, 3, stem="imagenet"))
    classes = tuple(str(number) for number in range(1000))
    done = export_module(network, Metadata(classes, ImageSpec(224, 224, 3), samples=25, architecture="resnet50"), out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB; bytes on macOS
    cost = {
        "peak_mib": peak / (2**20 if sys.platform == "darwin" else 2**10),
        "cpu_seconds": time.process_time(),
        "difference": done.parity.largest_difference,
    }
    print(json.dumps(cost))


if __name__ == "__main__":
    main(sys.argv[1])
