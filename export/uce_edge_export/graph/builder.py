"""Writing ONNX nodes one after another."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

OPSET = 18
"""The operators that all nodes are written in."""


class Builder:
    """Nodes and initializers: `g.Add(x, y)` appends an Add node."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Start empty.

        Args:
            taken: Names of initializers that the nodes will meet elsewhere.
        """
        self.nodes: list[ir.Node] = []
        self._constants: dict[Any, ir.Value] = {}
        self._squares: dict[ir.Value, ir.Value] = {}
        self._names = set(taken)

    @property
    def initializers(self) -> list[ir.Value]:
        """All constants used so far."""
        return list(self._constants.values())

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """Append a node: inputs as arguments, attributes as keywords."""
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def make(*inputs: ir.Value | None, **attributes: Any) -> ir.Value:
            return self.append(ir.node(op_type, inputs, attributes))[0]

        return make

    def append_to(self, graph: ir.Graph) -> None:
        """Append all nodes and initializers to a graph."""
        for value in self.initializers:
            graph.register_initializer(value)
        graph.extend(self.nodes)

    def split(self, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
        """Split a value into parts; one part needs no node."""
        if len(sizes) == 1:
            return [value]
        inputs = [value, self.constant(np.array(sizes))]
        return self.append(ir.node("Split", inputs, {"axis": axis}, num_outputs=len(sizes)))

    def append(self, node: ir.Node) -> list[ir.Value]:
        """Add a node made elsewhere; gives its outputs."""
        self.nodes.append(node)
        return list(node.outputs)

    def copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value]:
        """Append a copy of a node with other inputs."""
        attributes = node.attributes.values()
        return self.append(ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs)))

    def square(self, value: ir.Value) -> ir.Value:
        """X * x, written once for all who need it."""
        if value not in self._squares:
            self._squares[value] = self.Mul(value, value)
        return self._squares[value]

    def constant(self, array: npt.ArrayLike, name: str | None = None) -> ir.Value:
        """An initializer; equal unnamed ones are shared."""
        values = np.asarray(array)
        key = (name, values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = ir.val(self._unique(name or "constant"), const_value=ir.tensor(values))
        return self._constants[key]

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._names:
            candidate, count = f"{name}_{count}", count + 1
        self._names.add(candidate)
        return candidate
