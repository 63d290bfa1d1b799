"""Trace a PyTorch classifier; PyTorch reference for parity."""

import ast
import contextlib
import io
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from torch import Tensor, nn

from uce_edge._util.progress import working
from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.metadata import ImageSpec
from uce_edge_export import quiet_logs
from uce_edge_export.check.parity_gate import FloatArray, Pixels, Reference
from uce_edge_export.graph.assembly import Classifier
from uce_edge_export.graph.builder import OPSET
from uce_edge_export.graph.weight_layers import outputs_first, per_image_shape, weight_of
from uce_edge_export.noise.sites import Site, factored, in_order, sites_of_marks, sites_with_rates
from uce_edge_export.source.dropout_marks import Mark, mark, marks
from uce_edge_export.transform import batch_axis, simplification
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout import torch_dropout
from uce_edge_train.dropout.gaussian_layers import baked_weights, deterministic, gaussian_layers, noise_from
from uce_edge_train.dropout.layer_choice import NoiseWarning


def export_deterministic(model: nn.Module, spec: ImageSpec, *, keep_dropout: bool = False) -> Classifier:
    """Export a model without noise, batch-norm folded.

    Weights keep their parameter names.

    Args:
        model: Any classifier.
        spec: What it takes.
        keep_dropout: Mark where it calls dropout, see `dropout_marks`; without it, dropout is removed.
    """
    broken = [name for name, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise UceEdgeError(
            f"The weights hold NaN or infinity (first in {broken[0]}); nothing was written. "
            "Train again, for example with a smaller --learning-rate.",
            "weights.not-finite",
            tensors=broken,
        )
    model.eval()
    example = torch.zeros(2, spec.channels, spec.height, spec.width)  # 2: a batch of 1 would be specialised away
    calls = torch_dropout.Tracing() if keep_dropout else None
    if keep_dropout:
        torch_dropout.refuse_unreachable(model, example)
    quietly = contextlib.ExitStack()
    for block in (deterministic(model), torch.no_grad(), _quiet(), _without_fast_paths(), baked_weights(model)):
        quietly.enter_context(block)
    with working("exporting the graph"), quietly, calls or torch_dropout.removed():
        try:
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                custom_translation_table={torch.ops.uce_edge.dropout.default: _emit_mark},
            )
        except UceEdgeError:
            raise
        except Exception as error:  # the exporter raises many kinds; each is a model it cannot trace
            raise UceEdgeError(
                f"PyTorch could not export the model: {str(error).splitlines()[0]}", "export.untraceable"
            ) from error
    assert program is not None
    shape = program.model.graph.inputs[0].shape
    if shape is not None and isinstance(shape[0], int):
        raise UceEdgeError(
            "The model's forward pass fixes the batch size while it is traced. "
            "Does it use len(x)? Write x.shape[0] instead, and keep the batch out of Python branches.",
            "export.fixed-batch",
        )
    if calls is not None:
        _mark_calls(program.model.graph, calls.seen)
    # Shapes that PyTorch computes at run time, as attention does, become constants again.
    inferred = _images_first(simplification.infer_shapes(program.model), model, spec)
    _restore_names(inferred.graph, model)
    simplification.pool_whole_maps(inferred.graph)
    _refuse_probabilities(inferred.graph)
    return Classifier(inferred)


def _refuse_probabilities(graph: ir.Graph) -> None:
    """Reject a head that returns no logits."""
    final = simplification.final_node(graph)
    if final is None or final.op_type not in ("Sigmoid", "Softmax"):
        return
    reason = "Calibration works on logits."
    if final.op_type == "Sigmoid":
        reason = "Its outputs are separate answers of yes or no (multi-label); a model file has one class per image."
    raise UceEdgeError(
        f"The model ends in a {final.op_type}. {reason} Let it return what comes before it.", "head.probabilities"
    )


def _images_first(traced: ir.Model, model: nn.Module, spec: ImageSpec) -> ir.Model:
    """Move the batch to the first dimension where possible."""
    if not batch_axis.moves_images(traced.graph):
        return traced
    try:
        freed = simplification.for_one_image(ir.from_proto(ir.to_proto(traced)))
        batch_axis.free_batch(freed.graph)
    except batch_axis.MixedImagesError:
        return traced  # noise may start later in the graph; if not, the layer is rejected by name
    pixels = torch.randn(2, spec.channels, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), deterministic(model), torch_dropout.removed():
        alone, together = torch.cat([model(pixels[:1]), model(pixels[1:])]), model(pixels)
    if not torch.allclose(alone, together, atol=1e-3 * float(alone.abs().max())):
        return traced
    common.RemoveUnusedNodesPass()(freed)
    return simplification.infer_shapes(freed)


def _emit_mark(x: Any, call: int) -> Any:
    """A Dropout node in training mode, seeded by the call.

    No optimiser removes it.
    """
    import onnxscript

    op: Any = onnxscript.opset18
    return op.Dropout(x, op.Constant(value_float=0.5), op.Cast(op.Constant(value_int=1), to=9), seed=call)[0]


def _mark_calls(graph: ir.Graph, calls: list[torch_dropout.Call]) -> None:
    """Turn traced markers into marks, named after their modules."""
    nodes = [node for node in graph if node.op_type == "Dropout"]
    names = [_names(node) for node in nodes]
    alone = Counter(short for short, _ in names)
    for node, (short, long) in zip(nodes, names, strict=True):
        number = node.attributes["seed"].as_int()
        name = short if alone[short] == 1 else long
        mark(graph, node, Mark(name, calls[number].p, calls[number].kind, number))


def _names(node: ir.Node) -> tuple[str, str]:
    """Short and long name of a dropout call.

    A function call is named after the module around it.
    """
    *modules, call = ast.literal_eval(node.metadata_props["pkg.torch.onnx.name_scopes"])
    kinds = ast.literal_eval(node.metadata_props["pkg.torch.onnx.class_hierarchy"])
    if "nn.modules.dropout" in kinds[len(modules) - 1]:
        return modules[-1], modules[-1]
    return f"{modules[-1]}.dropout".lstrip("."), f"{modules[-1]}.{call}".lstrip(".")


def dropout_notes(model: nn.Module) -> tuple[str, ...]:
    """Note about dropout layers that the file does not keep."""
    names = torch_dropout.layer_names(model)
    if not names:
        return ()
    return (
        f"the dropout of {', '.join(names)} is not in the file: passes draw their noise from Gaussian dropout in the "
        'weight layers. Keep it with dropout="keep" (--dropout keep), or train with gaussianize(network) and without '
        "these layers",
    )


def noisy_sites(classifier: Classifier, model: nn.Module) -> list[Site]:
    """Gaussian layers and marked dropout, in graph order."""
    layers, masked = gaussian_layers(model), sites_of_marks(classifier.graph)
    if not layers and not masked:
        raise UsageError(
            f"{type(model).__name__} has no Gaussian dropout, so its passes would all be the same. Call "
            'gaussianize(model) before training, or export it without noise: Metadata(..., inference="deterministic").',
            "dropout.missing",
        )
    by_weight = {f"{name}.weight": layer for name, layer in layers.items()}
    idle = _idle(model, classifier)
    for reason in dict.fromkeys(idle.values()):
        names = [name for name in idle if idle[name] == reason]
        warnings.warn(
            f"the file has no noise in {', '.join(names)}: {reason}. Train without it, too: "
            f"gaussianize(model, exclude={names})",
            NoiseWarning,
            stacklevel=2,
        )
    by_weight = {name: layer for name, layer in by_weight.items() if name.removesuffix(".weight") not in idle}
    sites = [
        replace(site, perturbation=by_weight[site.name].perturbation(site.node))
        for site in sites_with_rates(classifier.graph, {name: layer.p for name, layer in by_weight.items()})
    ]
    trained = {name: layer.effective_weight.numpy() for name, layer in by_weight.items() if layer.factors_its_sigma}
    cheap = factored([site for site in sites if site.name in trained], trained) if trained else []
    by_node = {site.node: site for site in cheap}
    return in_order(classifier.graph, [*(by_node.get(site.node, site) for site in sites), *masked])


def _idle(model: nn.Module, classifier: Classifier) -> dict[str, str]:
    """Gaussian layers that add no noise, by name, and why.

    Those whose input is the same for every image are constants of the graph.
    """
    dims = per_image_shape(classifier.graph.inputs[0], "the image")
    layers = gaussian_layers(model)

    def inputs(seed: int) -> dict[str, list[Tensor]]:
        given: dict[str, list[Tensor]] = {name: [] for name in layers}
        hooks = [
            layer.register_forward_pre_hook(lambda _, args, name=name: given[name].append(args[0].clone()))
            for name, layer in layers.items()
        ]
        pixels = torch.randn(1, *dims, generator=torch.Generator().manual_seed(seed))
        try:
            with torch.no_grad(), deterministic(model), torch_dropout.removed(), _without_fast_paths():
                model(pixels)
        finally:
            for hook in hooks:
                hook.remove()
        return given

    one, other = inputs(0), inputs(1)
    idle = [name for name in layers if all(map(torch.equal, one[name], other[name]))]
    constant, uncalled = "the image does not reach these layers", "the network never calls these layers"
    return {name: constant if one[name] else f"{uncalled}, even if it uses their weights" for name in idle}


class _BatchElsewhereError(Exception):
    """A noisy value does not have its batch first."""


def torch_reference(model: nn.Module, spec: ImageSpec, sites: list[Site]) -> Reference:
    """PyTorch's logits under given noise.

    Dropout is in training mode where a site keeps it.
    """
    marked = marks([site.node for site in sites])
    mirrored = {site.node: _mirrored(site, model) for site in sites if site.node not in marked}

    def logits(images: Pixels, noises: list[FloatArray] | None) -> FloatArray:
        pixels = normalise(torch.from_numpy(np.ascontiguousarray(images)), spec)
        model.eval()
        if noises is None:
            with torch.no_grad(), deterministic(model), torch_dropout.removed():
                return model(pixels).numpy()[None]  # type: ignore[no-any-return]
        try:
            return sampled(pixels, noises)
        except _BatchElsewhereError:  # one image in one pass has its values in the same order wherever its dimension is
            passes = [[values[i : i + 1] for values in noises] for i in range(len(noises[0]))]
            return np.concatenate([np.concatenate([sampled(x[None], eps) for x in pixels], 1) for eps in passes])

    def sampled(pixels: Tensor, noises: list[FloatArray]) -> FloatArray:
        samples = len(noises[0])
        # A module may be used twice in a forward pass: its sites come in the order of the calls.
        queues: dict[str, list[tuple[FloatArray, Site]]] = defaultdict(list)
        masks: dict[int, tuple[FloatArray, Site]] = {}
        for site, values in zip(sites, noises, strict=True):
            call = marked[site.node].call if site.node in marked else None
            if call is None:
                queues[site.name.removesuffix(".weight")].append((values, site))
            else:
                masks[call] = values, site
        calls: dict[str, int] = defaultdict(int)

        def shaped(values: FloatArray, dims: tuple[int, ...], like: Tensor) -> Tensor:
            rows = samples * len(pixels)
            if rows > 1 and like.shape != (rows, *dims):
                raise _BatchElsewhereError
            return torch.from_numpy(values).repeat_interleave(len(pixels), 0).reshape(like.shape)

        def given(name: str, mu: Tensor) -> Tensor:
            if name not in queues:  # a Gaussian layer before the first noisy one of this export
                return torch.zeros_like(mu)
            values, site = queues[name][calls[name]]
            calls[name] += 1
            return shaped(values, site.normals, mu) * mirrored[site.node]

        def normals(call: int, mask: Tensor) -> Tensor:
            values, site = masks[call]
            return shaped(values, site.normals, mask)

        with torch.no_grad(), noise_from(model, given), torch_dropout.masks_from(normals, masks):
            result = model(pixels.repeat(samples, 1, 1, 1))
        return result.reshape(samples, len(pixels), -1).numpy()  # type: ignore[no-any-return]

    return logits


def _mirrored(site: Site, model: nn.Module) -> Tensor:
    """The sign of every output's noise, 1 or -1.

    Batch-norm with a negative scale mirrors the noise of its channel. Folded into the weights it does not: the noise
    has the same distribution, and the other sign.
    """
    if site.perturbation.kind == PerturbationKind.CHANNEL:  # the noise is that of the input
        return torch.ones(())
    layer, weight = gaussian_layers(model)[site.name.removesuffix(".weight")], weight_of(site.node)
    assert weight is not None
    assert weight[0].const_value is not None
    folded = torch.from_numpy(weight[0].const_value.numpy().copy())
    folded = folded if outputs_first(site.node) else folded.T
    along = (folded * layer.effective_weight).flatten(1).sum(1)
    signs = torch.where(along < 0, -1.0, 1.0)
    return signs.reshape(-1, *[1] * (folded.ndim - 2))


def _restore_names(graph: ir.Graph, model: nn.Module) -> None:
    """Name transposed and computed weights after their parameters."""
    for value in list(graph.initializers.values()):
        layer_name, _, last = str(value.name).rpartition(".")
        if last == "baked_weight":
            graph.initializers.pop(f"{layer_name}.weight", None)
            value.name = f"{layer_name}.weight"
    names = {value.name for value in graph.initializers.values()}
    for name, layer in gaussian_layers(model).items():
        weight_name = f"{name}.weight"
        if weight_name in names or not isinstance(layer.weight, Tensor) or layer.weight.ndim != 2:
            continue
        transposed = layer.effective_weight.numpy().T
        for value in list(graph.initializers.values()):
            constant = value.const_value
            if constant is None or value.name is None or not value.name.startswith("val_"):
                continue
            if constant.shape == transposed.shape and np.array_equal(constant.numpy(), transposed):
                value.name = weight_name
                break


@contextlib.contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Switch off fused transformer kernels, which hide their layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter; failures raise."""
    with quiet_logs.errors_only(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
