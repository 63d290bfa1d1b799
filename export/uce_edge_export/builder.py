"""Writing ONNX nodes one after another."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


class Builder:
    """Nodes and initializers in the making: `g.Add(x, y)` appends an Add node and gives its output."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self._constants: dict[Any, ir.Value] = {}
        self._names: set[str] = set()

    @property
    def initializers(self) -> list[ir.Value]:
        """All constants used so far."""
        return list(self._constants.values())

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        """A method per operator: inputs as arguments, attributes as keywords, `_outputs` for several outputs."""
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def make(*inputs: ir.Value | None, _outputs: int = 1, **attributes: Any) -> Any:
            node = ir.node(op_type, inputs, attributes, num_outputs=_outputs)
            self.append(node)
            return node.outputs[0] if _outputs == 1 else list(node.outputs)

        return make

    def append(self, node: ir.Node) -> None:
        """Add a node made elsewhere."""
        self.nodes.append(node)

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
