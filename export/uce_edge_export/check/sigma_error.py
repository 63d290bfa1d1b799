"""Error and cost of another sigma than the trained one."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge.contract import Inference, PerturbationKind, Sigma
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.providers import onnxruntime
from uce_edge_export.check import quality
from uce_edge_export.check.graph_reference import normalised
from uce_edge_export.check.parity_gate import Pixels
from uce_edge_export.graph.assembly import IR_VERSION, Classifier
from uce_edge_export.graph.builder import OPSET, Builder
from uce_edge_export.noise.sites import Site
from uce_edge_export.publish.draft import Draft

_SHOWN = 3  # layers that a message names


def refuse(sigma: Sigma | None, inference: Inference) -> None:
    """Reject options that exclude each other."""
    if sigma is not None and inference is Inference.DETERMINISTIC:
        raise UsageError(
            f"A deterministic model has no noise: leave --sigma {sigma} out, or use --inference mc.",
            "export.noise-missing",
        )


def of_sites(sites: Sequence[Site]) -> Sigma:
    """The kind of sigma that some layers have."""
    kinds = {site.perturbation.kind for site in sites}
    forms = {PerturbationKind.FACTORED: Sigma.FACTORED, PerturbationKind.CHANNEL: Sigma.CHANNEL}
    return next((sigma for kind, sigma in forms.items() if kind in kinds), Sigma.EXACT)


def layer_errors(
    classifier: Classifier, spec: ImageSpec, trained: Sequence[Site], sites: Sequence[Site], images: Pixels
) -> dict[str, float]:
    """Relative error of sigma in every layer that was factored, or was no more.

    It is the root of the mean squared difference over the root of the mean square.

    Args:
        classifier: The network without noise.
        spec: Of its images.
        trained: The layers as they were trained.
        sites: The same layers as they will be in the file.
        images: Images to compare on.
    """
    pairs = {
        theirs.node: (theirs, ours)
        for theirs, ours in zip(trained, sites, strict=True)
        if {theirs.perturbation.kind, ours.perturbation.kind} == {PerturbationKind.GAUSSIAN, PerturbationKind.FACTORED}
    }
    if not pairs:
        return {}
    g = Builder()
    pixels = normalised(classifier, spec, images)
    x = ir.val("x", ir.DataType.FLOAT, pixels.shape)
    values = {classifier.graph.inputs[0]: x}
    errors: dict[str, ir.Value] = {}
    for node in classifier.graph:
        inputs = [None if value is None else _operand(g, values, value) for value in node.inputs]
        if node in pairs:
            theirs, ours = (_deviation(g, site, inputs) for site in pairs[node])
            errors[pairs[node][0].name] = _relative_error(g, ours, theirs)
        values |= dict(zip(node.outputs, g.copy(node, inputs), strict=True))
    output = g.Concat(*errors.values(), axis=0)
    output.name, output.dtype = "errors", ir.DataType.FLOAT
    graph = ir.Graph([x], [output], nodes=g.nodes, initializers=g.initializers, opset_imports={"": OPSET})
    model = ir.Model(graph, ir_version=IR_VERSION)
    common.RemoveUnusedNodesPass()(model)
    session = onnxruntime().InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (measured,) = session.run(None, {"x": pixels})
    return dict(zip(errors, measured.tolist(), strict=True))


def describe(errors: dict[str, float], sigma: Sigma) -> str:
    """Describe the errors for a note."""
    if not errors:  # noise by channel
        return f"{sigma} sigma draws other noise than the trained one"
    worst = sorted(errors, key=lambda name: -errors[name])[:_SHOWN]
    named = ", ".join(f"{name} {errors[name]:.1%}" for name in worst)
    return f"{sigma} sigma differs from the trained one by {np.mean([*errors.values()]):.1%} a layer, most in {named}"


def judge(draft: Draft, trained: ir.Model, data: Split, errors: dict[str, float]) -> quality.Judgement:
    """Compare a file with one that has the trained sigma.

    Args:
        draft: The file.
        trained: The other one.
        data: Labelled images.
        errors: The error of sigma by layer.

    Raises:
        QualityError: The other sigma costs too much.
    """
    before = quality.answers(Draft.of(trained, draft.metadata), data, "the trained sigma")
    sigma = draft.metadata.sigma
    remedy = f"The {describe(errors, sigma)}. Export without --sigma, or train with it: uce-edge train --sigma {sigma}"
    form = f"{sigma} sigma"
    return quality.judge(before, quality.answers(draft, data, form), data, form, remedy)


def _operand(g: Builder, values: dict[ir.Value, ir.Value], value: ir.Value) -> ir.Value:
    if value not in values:
        assert value.const_value is not None
        values[value] = g.constant(value.const_value.numpy())
    return values[value]


def _deviation(g: Builder, site: Site, inputs: Sequence[ir.Value | None]) -> ir.Value:
    """Standard deviation up to a factor that all forms share."""
    return g.Sqrt(site.perturbation.moments(g, site.node, inputs).scaled[0])


def _relative_error(g: Builder, ours: ir.Value, theirs: ir.Value) -> ir.Value:
    """Root mean squared difference over root mean square, [1]."""
    parts = (g.ReduceSumSquare(g.Flatten(value, axis=0), keepdims=0) for value in (g.Sub(ours, theirs), theirs))
    difference, size = parts
    return g.Reshape(g.Sqrt(g.Div(difference, size)), g.constant(np.array([1])))
