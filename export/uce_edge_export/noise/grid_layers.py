"""Convolutions between maps on a grid, see `grid_moments`."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import weight_of
from uce_edge_export.noise.grid_moments import Gridded, given_map, is_large, map_of, picked, step_for
from uce_edge_export.noise.sigma_factors import Factors, Squares
from uce_edge_export.noise.uncertain import Operand, Uncertain, power

_PLACES = np.array([2, 3])  # axes of a map


@dataclass(frozen=True)
class GridLayer:
    """A convolution, and the grids of its input and output."""

    g: Builder
    node: ir.Node
    x: Gridded | None
    """The input; None for one without noise."""
    plain: ir.Value
    """The whole input."""
    step: int
    """Of the input's grid."""
    ratio: int
    """How many positions of the input's grid are one of the output's."""
    out_step: int
    size: tuple[int, int]
    """Of the output's grid."""

    def mean(self, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
        """The mean on the output's grid."""
        g, one_tap = self.g, _taps(self.node) == [1, 1]
        if one_tap and not any(_pads(self.node)):
            x = picked(g, self.plain, self.step) if self.x is None else self.x.grid.mean
            return self._one_tap(picked(g, x, self.ratio), weight, bias)
        attributes = dict(self.node.attributes)
        attributes["strides"] = ir.AttrInt64s("strides", [self.out_step * stride for stride in _strides(self.node)])
        inputs = [self.plain, weight, *([] if bias is None else [bias])]
        return g.append(ir.Node("", "Conv", inputs, attributes.values()))[0]

    def variance(self, weight: ir.Value, p: float, factor: float, factors: Factors | None) -> ir.Value:
        """Factor * layer(p m^2 + v, W^2) on the output's grid."""
        g = self.g
        if self.x is None:
            squares, more = g.square(picked(g, self.plain, self.step)), p
        else:
            squares, more = power(g, self.x.grid, p)
        whole = g.Mul(weight, weight) if factors is None else g.constant(factors.squares.astype(np.float32))
        sums = g.Mul(g.ReduceSum(whole, g.constant(_PLACES)), g.constant(np.float32(factor * more)))
        return self._one_tap(picked(g, squares, self.ratio), sums)

    def map(self, factors: Factors, p: float, factor: float) -> ir.Value:
        """Factor * s for a layer without groups: one channel."""
        g = self.g
        if self.x is None:
            squares = Squares(((g.square(picked(g, self.plain, self.step)), p),))
        else:
            squares = self.x.grid.squares(g, p)
        total = float(factors.taps.sum()) * factor
        places = math.prod(self.size)
        flat = g.constant(np.array([0, factors.inputs.shape[1], places]))
        sums = []
        for value, part in squares.parts:
            row = g.constant((total * part * factors.inputs).astype(np.float32))
            sums.append(g.MatMul(row, g.Reshape(picked(g, value, self.ratio), flat)))
        channel = g.Reshape(functools.reduce(g.Add, sums), g.constant(np.array([0, 1, *self.size])))
        return channel if squares.times is None else g.Mul(channel, picked(g, squares.times, self.ratio))

    def whole(self, mean: Uncertain, weight: ir.Value, bias: ir.Value | None) -> Uncertain:
        """The output: a map on a grid, or all of a small map."""
        if self.out_step == 1:
            return mean
        plain = self.g.copy(self.node, [self.plain, weight, *([] if bias is None else [bias])])[0]
        return Gridded(self.g, mean, plain, self.out_step, given_map(self.node.outputs[0]))

    def _one_tap(self, x: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
        groups = self.node.attributes["group"].as_int() if "group" in self.node.attributes else 1
        return self.g.Conv(x, weight, *([] if bias is None else [bias]), group=groups)


def on_grid(g: Builder, node: ir.Node, x: Operand) -> GridLayer | None:
    """A layer whose variance is computed on a grid; None for all of it."""
    shape, given = map_of(node.outputs[0]), map_of(node.inputs[0])
    if node.op_type != "Conv" or shape is None or given is None or weight_of(node) is None or x is None:
        return None
    out_step, (stride, *others) = step_for(shape), set(_strides(node))
    automatic = "auto_pad" in node.attributes and node.attributes["auto_pad"].as_string() not in ("NOTSET", "VALID")
    if others or automatic or (not is_large(shape) and not isinstance(x, Gridded)):
        return None
    known = x if isinstance(x, Gridded) else None
    if known is None and isinstance(x, Uncertain):
        parts = (picked(g, value, out_step * stride) for value in (x.mean, x.variance))
        known = Gridded(g, Uncertain(*parts, positive=x.positive), x.mean, out_step * stride, given)
    step = out_step * stride if known is None else known.step
    ratio = out_step * stride // step
    covered = given if known is None else known.covered
    size = _positions(node, given, out_step)
    if ratio * step != out_step * stride or [math.ceil(n / (step * ratio)) for n in covered] != size:
        return None
    plain = known.plain if known is not None else x
    assert isinstance(plain, ir.Value)
    return GridLayer(g, node, known, plain, step, ratio, out_step, (size[0], size[1]))


def _positions(node: ir.Node, given: tuple[int, int], step: int) -> list[int]:
    """How many positions a layer with a larger stride has."""
    pads, spread = _pads(node), _integers(node, "dilations", [1, 1])
    return [
        (n + pads[i] + pads[i + 2] - spread[i] * (k - 1) - 1) // (stride * step) + 1
        for i, (n, k, stride) in enumerate(zip(given, _taps(node), _strides(node), strict=True))
    ]


def _taps(node: ir.Node) -> list[int]:
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    return [int(n) for n in weight.const_value.shape[2:]]  # type: ignore[arg-type]


def _strides(node: ir.Node) -> list[int]:
    return _integers(node, "strides", [1, 1])


def _pads(node: ir.Node) -> list[int]:
    return _integers(node, "pads", [0, 0, 0, 0])


def _integers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else default
