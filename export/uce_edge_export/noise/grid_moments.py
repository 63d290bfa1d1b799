"""Variances of large maps at a few positions.

A large map has many positions that say the same about the noise of its channels. So it is computed twice:

    a *plain* map at all positions, by the layers of the network as they are, without regard to the variance
    mean and variance on a *grid* of every n-th position, by the rules of `moments`

A 1x1 layer works on the grid alone. The mean of a k x k layer is that of the plain map, at the grid's positions: noise
on single positions says little about the mean of a window. Its variance comes from squared weights that are summed over
the taps, as if mean and variance were constant under the window. Where a rule needs the whole map, it gets the plain
map and the variances of the nearest positions; once maps are small, the grid is the map.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise.uncertain import Operand, Uncertain, certain

LARGE = 32
"""Only behind a map with longer sides is there a grid."""
SIDE = 14
"""A grid has at least as many positions along each side."""

_PLACES = 2  # axes of a map


class Gridded(Uncertain):
    """A map whose mean and variance are known on a grid."""

    def __init__(
        self,
        g: Builder,
        grid: Uncertain,
        plain: ir.Value,
        step: int,
        shape: tuple[int, int],
        padded: tuple[tuple[int, int], Callable[[], ir.Value]] | None = None,
    ) -> None:
        """Describe a map.

        Args:
            g: Where the nodes go.
            grid: Mean and variance on the grid.
            plain: The map at all positions.
            step: Between neighbours of the grid.
            shape: Height and width of the map.
            padded: For a map with zeros around it, height and width without them, and what writes its variance.
        """
        self.grid, self.plain, self.step, self.shape = grid, plain, step, shape
        self.covered, variance = padded or (shape, lambda: self._spread(grid.variance))
        self._g = g
        super().__init__(plain, variance, positive=grid.positive and padded is None)

    def _spread(self, value: ir.Value) -> ir.Value:
        """A value of the grid at all positions."""
        g = self._g
        scales = g.constant(np.array([1, 1, self.step, self.step], np.float32))
        near = g.Resize(
            value, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
        if all(size % self.step == 0 for size in self.shape):
            return near
        bounds = (np.zeros(_PLACES, np.int64), np.array(self.shape), np.array([2, 3]))
        return g.Slice(near, *map(g.constant, bounds))


def step_for(shape: Sequence[int]) -> int:
    """The step of the grid on a map of some height and width."""
    return 1 << max(int(min(shape) / SIDE), 1).bit_length() - 1


def is_large(shape: Sequence[int]) -> bool:
    """Whether a map gets a grid, wherever it comes from."""
    return min(shape) > LARGE and step_for(shape) > 1


def picked(g: Builder, value: ir.Value, step: int) -> ir.Value:
    """Every n-th position of a map."""
    # As a Slice, it would leave the blocked layout of ONNX Runtime.
    return value if step == 1 else g.MaxPool(value, kernel_shape=[1, 1], strides=[step, step])


def map_of(value: ir.Value | None) -> tuple[int, int] | None:
    """Height and width of a map; None if it is none, or unknown."""
    dims = None if value is None or value.shape is None else value.shape.dims
    if dims is None or len(dims) != 2 + _PLACES or not all(isinstance(dim, int) for dim in dims[1:]):
        return None
    height, width = dims[2:]
    assert isinstance(height, int)
    assert isinstance(width, int)
    return height, width


def element_by_element(
    g: Builder, node: ir.Node, operands: Sequence[Operand], rule: Callable[..., Uncertain]
) -> Uncertain | None:
    """An operator that works element by element, on the grid.

    Args:
        g: Where the nodes go.
        node: The operator.
        operands: Its inputs; one of them is `Gridded`.
        rule: Its rule for mean and variance.

    Returns:
        None where the inputs do not lie on one grid.
    """
    first = next(x for x in operands if isinstance(x, Gridded))
    on_grid: list[Operand] = []
    plain: list[ir.Value | None] = []
    for value, x in zip(node.inputs, operands, strict=True):
        whole = x.plain if isinstance(x, Gridded) else x.mean if isinstance(x, Uncertain) else x
        plain.append(whole)
        if isinstance(x, Gridded):
            if (x.step, x.shape, x.covered) != (first.step, first.shape, first.shape):
                return None
            on_grid.append(x.grid)
        elif value is None or x is None or _is_one_place(value, x):
            on_grid.append(x)
        elif not isinstance(x, Uncertain) and map_of(value) == first.shape and value.const_value is None:
            on_grid.append(picked(g, x, first.step))
        else:
            return None
    return Gridded(g, rule(g, node, on_grid), g.copy(node, plain)[0], first.step, first.shape)


def _is_one_place(value: ir.Value, x: Operand) -> bool:
    """Whether a value is the same at all positions."""
    constant = x.const_value if isinstance(x, ir.Value) else None
    shape = value.shape if constant is None else constant.shape
    return shape is not None and all(dim == 1 for dim in shape.dims[-_PLACES:])


def pooled(g: Builder, node: ir.Node, x: Gridded, rest: Sequence[Operand]) -> Uncertain:
    """The mean over all positions."""
    difference = g.Sub(x.grid.mean, picked(g, x.plain, x.step))
    mean, more, variance = (g.copy(node, [v, *certain(rest)])[0] for v in (x.plain, difference, x.grid.variance))
    share = g.constant(np.float32(1 / math.prod(x.shape)))
    return Uncertain(g.Add(mean, more), g.Mul(variance, share))


def pools_all(node: ir.Node) -> bool:
    """Whether an operator is a mean over all positions."""
    if node.op_type == "GlobalAveragePool":
        return True
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return node.op_type == "ReduceMean" and axes is not None and {int(a) % 4 for a in axes.numpy().ravel()} == {2, 3}


def padded(g: Builder, node: ir.Node, x: Gridded, rest: Sequence[Operand], rule: Callable[..., Uncertain]) -> Uncertain:
    """Zeros around a map; the grid stays where it is."""
    plain = g.copy(node, [x.plain, *certain(rest)])[0]
    shape = given_map(node.outputs[0])

    def variance() -> ir.Value:
        return rule(g, node, Uncertain(x.mean, x.variance), rest).variance

    return Gridded(g, x.grid, plain, x.step, shape, (x.covered, variance))


def pads_a_little(node: ir.Node, x: Gridded) -> bool:
    """Whether an operator adds less than a step of zeros to a map."""
    pads = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    value = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if pads is None or map_of(node.outputs[0]) is None or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return False
    sizes = pads.numpy().reshape(2, -1)
    zero = value is None or not np.any(value.numpy())
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "constant"
    inside = sizes.shape[1] == 4 and not sizes[:, :2].any() and bool(((sizes >= 0) & (sizes < x.step)).all())
    return inside and zero and mode == "constant"


def given_map(value: ir.Value) -> tuple[int, int]:
    """Height and width of what is known to be a map."""
    shape = map_of(value)
    assert shape is not None
    return shape
