"""A file with its passes baked in: it takes an image and no seeds."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.contract import pass_seeds
from uce_edge_export.publish import Draft


def bake_seeds(draft: Draft) -> None:
    """Turn the input `seeds` into the constant 0, 1, ..., N - 1."""
    model, samples = ir.load(draft.path), draft.metadata.samples
    (seeds,) = (value for value in model.graph.inputs if value.name == contract.SEEDS)
    model.graph.inputs.remove(seeds)
    seeds.const_value = ir.tensor(np.array(pass_seeds(samples, 0), np.int32), name=contract.SEEDS)
    seeds.shape = ir.Shape([samples])
    model.graph.register_initializer(seeds)
    draft.metadata = replace(draft.metadata, baked=True)
    draft.rewrite(model)
