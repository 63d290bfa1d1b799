"""What a hundred draws from a Laplace posterior cost beside one deterministic pass.

Both files run in processes of their own and take turns. The weights are random, and so are the images that the
posterior is fitted on: neither changes the speed. What draws cost is a fixed price, the same for every network: some
eighty small nodes that make the noise, and the head on a hundred passes. A network that takes less than a millisecond
feels it. The ratio means something on a machine that is otherwise idle:

    pytest benchmarks/speed/test_draws.py -s
"""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from uce_edge.bench.sweep import sweep
from uce_edge.contract import Inference, PriorFrom
from uce_edge.datasets.splits import Split
from uce_edge.runtime.model import Model
from uce_edge_export.graph import laplace_draws
from uce_edge_export.options import FileKind
from uce_edge_export.publish.draft import publish
from uce_edge_train.networks.untrained import export_untrained

PASSES = 100
MOST = {"resnet20": 1.3, "resnet34": 1.1}
"""Times the deterministic pass; 1.1 is the aim for both."""


@pytest.mark.parametrize("network", MOST)
def test_a_hundred_draws_cost_about_one_pass(network: str, images: np.ndarray, tmp_path: Path) -> None:
    plain, drawn = tmp_path / "deterministic.onnx", tmp_path / "laplace.onnx"
    metadata = export_untrained(network, plain, FileKind(Inference.DETERMINISTIC)).metadata
    data = Split(images, np.arange(len(images)) % 10)
    model = ir.load(plain)
    posterior, told = laplace_draws.fit(model, data, data, PriorFrom.MARGINAL_LIKELIHOOD)
    with publish(model, metadata, drawn) as draft:
        laplace_draws.add(draft, laplace_draws.Drawn(posterior, told, PASSES), images[:3])
    report = sweep(drawn, [PASSES], baseline=plain, threads=2, rounds=5)
    (measured,) = report.measurements
    print(f"\n{network}: {measured.p50_ms:.2f} ms with {PASSES} draws, {measured.baseline_p50_ms:.2f} ms without; "
          f"{measured.ratio:.3f} by medians, {measured.ratio_best:.3f} by best times")  # fmt: skip
    prediction = Model(drawn, "cpu", threads=2).predict(images[:1])
    assert prediction.samples == PASSES
    assert prediction.model_uncertainty[0] > 0
    assert measured.ratio_best is not None
    assert measured.ratio_best <= MOST[network]
