"""The graph pass: N Monte Carlo passes of a classifier.

The pass walks the nodes once, in order, and writes a new graph. Every value is *plain* (a constant or a shape),
*shared* (it does not depend on noise; leading dimension: batch) or *sampled* (leading dimension: samples * batch,
passes outside). What a noisy node becomes, its perturbation knows (see `perturbations`).

N enters as late as possible: all that is shared runs once per image, and so does what the first noise acts on. That
noise is drawn once for all images and broadcasts over them. Where a sampled value meets a shared one later, the shared
one is repeated.

With `sampled_from`, values before some layers are *uncertain*: their mean and variance are known (see `moments`), and
they are drawn, element by element, where they meet one of those layers.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge.metadata import Costs
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import bytes_of, known_dims, multiplications, per_image_shape, weight_of
from uce_edge_export.noise import inner_sums, layer_moments, moments
from uce_edge_export.noise.perturbations import Masking
from uce_edge_export.noise.sites import Site
from uce_edge_export.noise.uncertain import Operand, Uncertain
from uce_edge_export.transform.batch_mixing import refuse_batch_mixing

Noise = Callable[["ir.Node | ir.Value", ir.Value], ir.Value]
"""Given a layer, or a value that is drawn, and its repeated mean, the noise of the same shape as graph nodes."""


PASSES = "passes"
"""The name of the leading dimension of sampled values, samples * batch, in the file.

A runtime that knows which values are equally large plans its memory several times faster when it loads a file.
"""


COPIES = 4
"""Mean, variance, noise and sample of a value live side by side; measured with ONNX Runtime on residual and dense
networks, a pass takes 3 to 5 times what the deterministic network takes."""


class _Kind(Enum):
    PLAIN = auto()
    SHARED = auto()
    UNCERTAIN = auto()
    SAMPLED = auto()


class Written(NamedTuple):
    """A value of the classifier, as the graph has it."""

    value: ir.Value
    """The value, or its mean where it is uncertain."""
    sampled: bool
    """Whether it has an entry for every pass."""
    variance: Callable[[], ir.Value] | None = None
    """Writes the variance of an uncertain value."""


RandomParts = list[tuple[ir.Node | ir.Value, tuple[int, ...]]]
"""A noisy node or a drawn value, and the shape of its standard normals for one image."""


def random_parts(graph: ir.Graph, sites: Sequence[Site], sampled_from: Collection[ir.Node] | None) -> RandomParts:
    """Draws of a pass: uncertain values, then noisy nodes.

    Args:
        graph: The deterministic classifier.
        sites: Its noisy nodes.
        sampled_from: The layers whose operands are drawn; None to sample everything.
    """
    return _walked(graph, sites, sampled_from)[0]


def first_noise(
    graph: ir.Graph, sites: Sequence[Site], sampled_from: Collection[ir.Node] | None
) -> set[ir.Node | ir.Value]:
    """Those of `random_parts` whose operands run once per image.

    Their noise comes once for a pass, and meets the values of all images by broadcasting: nothing is repeated before.
    """
    repeating = {site.node for site in sites if site.perturbation.repeats}
    return _walked(graph, sites, sampled_from)[1] - repeating


def _walked(
    graph: ir.Graph, sites: Sequence[Site], sampled_from: Collection[ir.Node] | None
) -> tuple[RandomParts, set[ir.Node | ir.Value]]:
    """Draws of a pass, and the first ones."""
    noisy = {site.node for site in sites}
    sampled_from = set(graph) if sampled_from is None else sampled_from
    first: set[ir.Node | ir.Value] = set()
    uncertain: set[ir.Value] = set()
    sampled: set[ir.Value] = set()
    drawn: dict[ir.Value, None] = {}
    for node in graph:
        given = {value for value in node.inputs if value is not None}
        if node.op_type in ("Shape", "Size"):
            continue
        if given & sampled or (node in sampled_from and (node in noisy or given & uncertain)):
            if node in noisy and not given & (sampled | uncertain):
                first.add(node)
            drawn |= dict.fromkeys(value for value in node.inputs if value in uncertain)
            sampled.update(node.outputs)
        elif given & uncertain or node in noisy:
            uncertain.update(node.outputs)
    if graph.outputs[0] in uncertain:
        drawn[graph.outputs[0]] = None
    values: RandomParts = [(value, per_image_shape(value, f"{value.name}")) for value in drawn]
    nodes: RandomParts = [(site.node, site.normals) for site in sites if site.node.outputs[0] in sampled]
    return values + nodes, first.union(drawn)


class Pass:
    """Copies a classifier into a builder, with or without noise."""

    def __init__(
        self,
        g: Builder,
        graph: ir.Graph,
        batch: ir.Value,
        samples: ir.Value | None,
        sampled_from: Collection[ir.Node] | None = None,
        variance_scale: ir.Value | None = None,
        seeds: ir.Value | None = None,
        weights: Mapping[ir.Value, npt.NDArray[np.float64]] | None = None,
    ) -> None:
        """Prepare.

        Args:
            g: Where the nodes go.
            graph: The deterministic classifier.
            batch: int64 [1], the number of images.
            samples: int64 [1], the number of passes; None for none.
            sampled_from: The layers whose operands are drawn; None to sample everything.
            variance_scale: float [1], the factor of the variance of what is drawn.
            seeds: int32 [samples], one for every pass; None for none.
            weights: Replacements of constants of the classifier.
        """
        self._g = g
        self._graph = graph
        self._batch = batch
        self._samples = samples
        self._sampled_from = sampled_from
        self._scale = variance_scale
        self._seeds = seeds
        self._weights = weights or {}
        self._uncertain: dict[ir.Value, Uncertain] = {}
        self._noise: Noise | None = None
        self._values: dict[ir.Value, ir.Value] = {}
        self._kinds: dict[ir.Value, _Kind] = {}
        self._repeats: dict[ir.Value, ir.Value] = {}
        self._repeat: ir.Value | None = None
        self._once_a_pass: Collection[ir.Node | ir.Value] = ()
        self._passes: ir.Value | None = None
        self._once = 0
        self._per_pass = 0
        self._rows: dict[ir.Value, int] = {}
        self._widest = 0
        """Bytes of the largest sampled value of one image."""

    def run(
        self,
        image: ir.Value,
        sites: Sequence[Site],
        noise: Noise | None,
        once: Collection[ir.Node | ir.Value] = (),
        *,
        expand_early: bool = False,
    ) -> tuple[ir.Value, Costs]:
        """Write all nodes.

        Args:
            image: The replacement of the classifier's input.
            sites: The noisy layers.
            noise: Where their noise comes from.
            once: Nodes and drawn values whose noise comes once for a pass, and not for every image of it.
            expand_early: Repeat the image N times at once, for runtimes that cannot broadcast later.

        Returns:
            The logits, sampled if there is a noisy layer, and what they cost.
        """
        start = self._graph.inputs[0]
        self._set(start, image, _Kind.SHARED)
        if expand_early and sites:
            self._set(start, self._repeated(image), _Kind.SAMPLED)
        self._noise, self._once_a_pass = noise, once
        noisy = {site.node: site for site in sites}
        for node in self._graph:
            sampled = self._sampled_from is None or node in self._sampled_from
            if node in noisy and (sampled or any(self._kind(x) is _Kind.SAMPLED for x in node.inputs if x is not None)):
                self._sample(noisy[node])
            elif node in noisy:
                perturbation = noisy[node].perturbation
                self._hold(node.outputs[0], perturbation.moments(self._g, node, self._operands(node)))
                self._count(perturbation.multiplications(node), sampled=False)
            elif not sampled and weight_of(node) and self._is_uncertain(node):
                self._hold(node.outputs[0], layer_moments.moments(self._g, node, self._operands(node)))
                self._count(2 * multiplications(node), sampled=False)
            else:
                self._copy(node, sampled=sampled and weight_of(node) is not None)
        output = self._graph.outputs[0]
        logits = self._sampled(output) if sites else self._value(output)
        return logits, Costs(self._once, self._per_pass, bytes_per_draw=COPIES * self._widest or None)

    def written(self, value: ir.Value) -> Written:
        """A value of the classifier, after `run`."""
        if self._kind(value) is not _Kind.UNCERTAIN:
            return Written(self._value(value), self._kind(value) is _Kind.SAMPLED)
        known, scale = self._uncertain[value], self._scale
        assert scale is not None
        return Written(known.mean, sampled=False, variance=lambda: self._g.Mul(known.variance, scale))

    def repeated(self, value: ir.Value) -> ir.Value:
        """[batch, ...] -> [samples * batch, ...], passes outside."""
        return self._repeated(value)

    def _sample(self, site: Site) -> None:
        """Write a node with noise of its own."""
        assert self._noise is not None
        node, perturbation = site.node, site.perturbation
        kinds = {self._kind(value) for value in node.inputs if value is not None}
        sampled = bool(kinds & {_Kind.SAMPLED, _Kind.UNCERTAIN})
        inputs = [None if x is None else self._sampled(x) if sampled else self._value(x) for x in node.inputs]
        prepared = perturbation.prepare(self._g, node, inputs)
        once, masking = node in self._once_a_pass, isinstance(perturbation, Masking)
        broadcast = once and not sampled and not masking
        if not sampled and not broadcast:
            prepared = tuple(part if part.const_value is not None else self._repeated(part) for part in prepared)
        normals = self._noise(node, prepared[0])
        if isinstance(perturbation, Masking):
            normals = perturbation.mask(self._g, normals)
        if broadcast:
            drawn = self._joined(perturbation.perturb(self._g, prepared, self._over_images(normals)), node.outputs[0])
        else:
            drawn = perturbation.perturb(self._g, prepared, self._for_every_image(normals) if once else normals)
        self._set(node.outputs[0], drawn, _Kind.SAMPLED)
        if perturbation.repeats:
            self._widest = max(self._widest, *(bytes_of(x) for x in node.inputs if x is not None and x in self._kinds))
        self._count(perturbation.multiplications(node), sampled or perturbation.repeats)

    def _operands(self, node: ir.Node) -> list[Operand]:
        """The inputs of a node; some may be uncertain."""
        return [None if x is None else self._uncertain.get(x) or self._value(x) for x in node.inputs]

    def _hold(self, old: ir.Value, new: Uncertain) -> None:
        self._uncertain[old] = new
        self._kinds[old] = _Kind.UNCERTAIN

    def _is_uncertain(self, node: ir.Node) -> bool:
        kinds = {self._kind(value) for value in node.inputs if value is not None}
        return _Kind.UNCERTAIN in kinds and _Kind.SAMPLED not in kinds

    def _copy(self, node: ir.Node, *, sampled: bool = False) -> None:
        """Write a node without noise; `sampled` draws uncertain inputs."""
        given = [value for value in node.inputs if value is not None]
        kinds = {self._kind(value) for value in given}
        if self._is_uncertain(node) and node.op_type in ("Shape", "Size"):
            known_by = self._uncertain[given[0]]
            self._set(node.outputs[0], self._g.copy(node, [known_by.mean])[0], _Kind.PLAIN)
            return
        if self._is_uncertain(node) and not sampled:
            results = moments.propagate(self._g, node, self._operands(node))
            for output, known in zip(node.outputs, results, strict=True):
                self._hold(output, known)
            return
        noisy = bool(kinds & {_Kind.SAMPLED, _Kind.UNCERTAIN})
        kind = _Kind.SAMPLED if noisy else _Kind.SHARED if _Kind.SHARED in kinds else _Kind.PLAIN
        inputs = [
            None if value is None else self._sampled(value) if kind is _Kind.SAMPLED else self._value(value)
            for value in node.inputs
        ]
        if node.op_type in ("Shape", "Size"):
            kind = _Kind.PLAIN
        elif kind is _Kind.SAMPLED:
            refuse_batch_mixing(node)
            # A target shape that was computed from the image still says "batch"; only its other dimensions hold.
            if node.op_type == "Reshape":
                inputs[1] = self._target(node, -1)
            elif node.op_type == "Expand":
                inputs[1] = self._target(node, 1)
        for old, new in zip(node.outputs, inner_sums.copy(self._g, node, inputs), strict=True):
            self._set(old, new, kind)
            rows = self._rows_of(node, old)
            reshaped = self._g.nodes[-1].op_type == "Reshape" and rows == 1
            if kind is _Kind.SAMPLED and reshaped and old.dtype is not None:
                shape = per_image_shape(old, f"{node.op_type} {node.name}")
                new.type, new.shape = ir.TensorType(old.dtype), ir.Shape([PASSES, *shape])
        self._count(multiplications(node), kind is _Kind.SAMPLED)

    def _rows_of(self, node: ir.Node, output: ir.Value) -> int:
        """How many leading entries of a value one image has.

        Some networks join images with places, such as for the batch-norm of LeViT.
        """
        rows = max((self._rows.get(value, 1) for value in node.inputs if value is not None), default=1)
        if node.op_type == "Reshape" and node.inputs[0] is not None:
            before, after = (math.prod(known_dims(value)) for value in (node.inputs[0], output))
            rows = rows * before // max(1, after)
        if rows != 1:
            self._rows[output] = rows
        return rows

    def _target(self, node: ir.Node, leading: int) -> ir.Value:
        shape = per_image_shape(node.outputs[0], f"{node.op_type} {node.name}")
        return self._g.constant(np.array([leading, *shape]))

    def _count(self, count: int, sampled: bool) -> None:
        if sampled:
            self._per_pass += count
        else:
            self._once += count

    def _set(self, old: ir.Value, new: ir.Value, kind: _Kind) -> None:
        if kind is _Kind.SAMPLED:
            self._widest = max(self._widest, bytes_of(old))
        self._values[old] = new
        self._kinds[old] = kind

    def _kind(self, value: ir.Value) -> _Kind:
        return self._kinds.get(value, _Kind.PLAIN)

    def _value(self, value: ir.Value) -> ir.Value:
        if value not in self._values:
            if value.const_value is None:
                raise UceEdgeError(
                    f"The value {value.name} has no origin in the graph: the model is damaged.", "graph.damaged"
                )
            array = value.const_value.numpy()
            if value in self._weights:
                array = self._weights[value].astype(array.dtype)
            self._values[value] = self._g.constant(array, value.name)
        return self._values[value]

    def _sampled(self, value: ir.Value) -> ir.Value:
        """An operand of a sampled node: drawn or repeated."""
        if self._kind(value) is _Kind.UNCERTAIN and value not in self._values:
            self._values[value] = self._draw(value)
        new = self._value(value)
        return self._repeated(new) if self._kind(value) is _Kind.SHARED else new

    def _draw(self, value: ir.Value) -> ir.Value:
        g, known = self._g, self._uncertain[value]
        assert self._noise is not None
        assert self._scale is not None
        mean, sigma = known.mean, g.Sqrt(g.Mul(known.variance, self._scale))
        if value in self._once_a_pass:
            return self._joined(g.Add(mean, g.Mul(sigma, self._over_images(self._noise(value, mean)))), value)
        mean, sigma = self._repeated(mean), self._repeated(sigma)
        return g.Add(mean, g.Mul(sigma, self._noise(value, mean)))

    def _over_images(self, noise: ir.Value) -> ir.Value:
        """[samples, ...] -> [samples, 1, ...], which broadcasts over [batch, ...]."""
        return self._g.Unsqueeze(noise, self._g.constant(np.array([1])))

    def _joined(self, value: ir.Value, old: ir.Value) -> ir.Value:
        """[samples, batch, ...] -> [samples * batch, ...], passes outside."""
        shape = per_image_shape(old, str(old.name))
        joined = self._g.Reshape(value, self._g.constant(np.array([-1, *shape])))
        joined.type, joined.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([PASSES, *shape])
        return joined

    def _for_every_image(self, value: ir.Value) -> ir.Value:
        """[samples, ...] -> [samples * batch, ...], passes outside."""
        g = self._g
        if self._passes is None:
            assert self._seeds is not None
            zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
            # 0, unknown before the seeds: tract would take away the Gather of a single pass, move
            # the stride of a layer behind the mask over the Reshape of its noise, and fail.
            unknown = g.Cast(g.Mod(self._seeds, g.constant(np.int32(1))), to=ir.DataType.INT64)
            passes = g.Add(g.Range(zero, g.Squeeze(self._samples), one), unknown)
            passes = g.Unsqueeze(passes, g.constant(np.array([1])))
            shape = g.Concat(self._samples, self._batch, axis=0)
            self._passes = g.Reshape(g.Expand(passes, shape), g.constant(np.array([-1])))
            self._passes.type, self._passes.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([PASSES])
        return g.Gather(value, self._passes, axis=0)

    def _repeated(self, value: ir.Value) -> ir.Value:
        """[batch, ...] -> [samples * batch, ...], passes outside."""
        g = self._g
        if self._repeat is None:
            zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
            images = g.Range(zero, g.Squeeze(self._batch), one)
            shape = g.Concat(self._samples, self._batch, axis=0)
            self._repeat = g.Reshape(g.Expand(images, shape), g.constant(np.array([-1])))
            self._repeat.type, self._repeat.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([PASSES])
        if value not in self._repeats:
            self._repeats[value] = g.Gather(value, self._repeat, axis=0)
        return self._repeats[value]
