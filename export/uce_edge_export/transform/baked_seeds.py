"""Bake passes into a file: it takes no seeds."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.contract import NoiseKind, pass_seeds
from uce_edge.errors import UceEdgeError
from uce_edge.integrity.self_test import Pattern, image
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import Draft, graph_of, publish

_TOLERANCE = 1e-4  # on probabilities; the passes are the same ones


def bake_seeds(draft: Draft) -> None:
    """Turn the input `seeds` into a constant."""
    model, samples = draft.graph(), draft.metadata.samples
    (seeds,) = (value for value in model.graph.inputs if value.name == contract.SEEDS)
    model.graph.inputs.remove(seeds)
    seeds.const_value = ir.tensor(np.array(pass_seeds(samples, 0), np.int32), name=contract.SEEDS)
    seeds.shape = ir.Shape([samples])
    model.graph.register_initializer(seeds)
    draft.rewrite(model, replace(draft.metadata, baked=True))


def bake_file(path: Path, out: Path) -> None:
    """Write a model file with its default passes baked in.

    A file that takes no seeds is copied. Nothing is written unless the answers are the same.
    """
    original = Model(path, "cpu")
    if not original.metadata.takes_seeds:
        out.write_bytes(original.content())
        out.with_suffix(".json").write_text(original.metadata.to_json(indent=2) + "\n")
        return
    with publish(graph_of(original), original.metadata, out) as draft:
        bake_seeds(draft)
        _check(original, draft.model)


def _check(original: Model, baked: Model) -> None:
    """Compare the answers to a probe image; random noise: finite."""
    pixels = image(Pattern.WEYL, original.metadata.image)[None]
    theirs, ours = (model.predict(pixels).probabilities for model in (original, baked))
    repeats = original.metadata.noise is not NoiseKind.RANDN
    difference = float(np.abs(ours - (theirs if repeats else 0)).max())
    # Written so that NaN fails, too.
    if not difference <= (_TOLERANCE if repeats else 1):
        raise UceEdgeError(
            f"{original.path} was not baked: with its passes in the file, probabilities differ by {difference:.2g}. "
            "Export it again with --bake-samples N",
            "bake.different",
        )


def baked_content(path: Path) -> tuple[bytes, bytes]:
    """A baked model file and its description, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.onnx"
        bake_file(path, out)
        return out.read_bytes(), out.with_suffix(".json").read_bytes()
