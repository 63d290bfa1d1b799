"""Split a file into a trunk that runs once, and a tail.

The trunk is what the seeds do not reach. Where an image's passes take several calls, the trunk's results are kept and
only the tail runs again. Both are made of the file's own nodes and weights, so they give the same answers to the bit.

The values where they meet carry the image; what is computed from shapes alone is part of both.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge.integrity.protobuf import Field, WireError, as_varint, bytes_field, fields
from uce_edge.runtime.session import Runner

_GRAPH, _METADATA = 7, 14  # of a model
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE, _SPARSE = 1, 5, 11, 12, 13, 15  # of a graph
_ATTRIBUTE, _SUBGRAPHS = 5, (6, 11)
_TYPES = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "double": 11,
}  # fmt: skip
Values = dict[str, npt.NDArray[Any]]
OpenSession = Callable[[bytes], Any]
"""Opens a model, as the file itself was opened."""


@dataclass(frozen=True)
class _Node:
    field: Field
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """Which nodes and values belong to which half."""

    trunk: list[_Node]
    tail: list[_Node]
    seam: list[str]
    """Values of the trunk that the tail takes."""
    takes_image: bool
    """Whether the tail takes the image itself, too."""
    early: list[str]
    """Outputs of the file that the trunk computes."""
    late: list[str]
    """Outputs of the file that the tail computes."""


class Kept:
    """What the trunk computed for some images."""

    def __init__(self, halves: "Halves", values: Values) -> None:
        """Keep values, of which each has one row per image."""
        self._halves, self._values = halves, values

    def rows(self, chosen: Any) -> "Kept":
        """The same for some of the images."""
        return Kept(self._halves, {name: value[chosen] for name, value in self._values.items()})

    def run(self, names: Sequence[str], seeds: npt.NDArray[np.int32] | None) -> list[Any]:
        """Outputs of the file, by passes of the tail."""
        late = [name for name in names if name in self._halves.late]
        feed: dict[str, Any] = {name: self._values[name] for name in self._halves.taken} | {contract.SEEDS: seeds}
        drawn = dict(zip(late, self._halves.tail.run(late, feed), strict=True))
        return [drawn[name] if name in drawn else self._values[name] for name in names]


class Halves:
    """Sessions of the trunk and of the tail."""

    def __init__(self, trunk: Runner, tail: Runner, plan: _Plan) -> None:
        """Join two sessions."""
        self._trunk, self.tail = trunk, tail
        self._computed = [*plan.seam, *plan.early]
        self.taken = [*plan.seam, *([contract.IMAGE] if plan.takes_image else [])]
        self.late = set(plan.late)

    def keep(self, batch: npt.NDArray[np.uint8]) -> Kept | None:
        """Run the trunk; None where a value has no row per image."""
        values = dict(zip(self._computed, self._trunk.run(self._computed, {contract.IMAGE: batch}), strict=True))
        if any(value.ndim == 0 or len(value) != len(batch) for value in values.values()):
            return None
        return Kept(self, values | {contract.IMAGE: batch})


def open_halves(content: bytes, open_session: OpenSession) -> Halves | None:
    """Open the trunk and the tail of a file.

    Args:
        content: The file.
        open_session: Opens each of them.

    Returns:
        None for a file that has no trunk, or that is not in the ONNX format.
    """
    if content[4:8] == b"ORTM":
        return None
    try:
        model = list(fields(memoryview(content)))
        graph = [field for part in model if part.number == _GRAPH for field in fields(part.content, "graph")]
        plan = _planned(graph)
    except WireError:  # a value with a remark
        return None
    if plan is None:
        return None
    trunk = open_session(_model(model, graph, plan.trunk, [contract.IMAGE], [], [*plan.seam, *plan.early]))
    types = {value.name: (value.type, value.shape) for value in trunk.get_outputs()}
    made = [_declared(name, *types[name]) for name in plan.seam]
    own = [contract.SEEDS, *([contract.IMAGE] if plan.takes_image else [])]
    tail = open_session(_model(model, graph, plan.tail, own, made, plan.late))
    return Halves(Runner(trunk), Runner(tail), plan)


def _planned(graph: Sequence[Field]) -> _Plan | None:
    inputs = {_name_of(field) for field in graph if field.number == _INPUT}
    outputs = [_name_of(field) for field in graph if field.number == _OUTPUT]
    nodes = [_read(field) for field in graph if field.number == _NODE]
    if inputs != {contract.IMAGE, contract.SEEDS} or None in nodes or any(x.number == _SPARSE for x in graph):
        return None
    known = [node for node in nodes if node is not None]
    drawn, carried = {contract.SEEDS}, {contract.IMAGE}
    for node in known:
        if drawn.intersection(node.inputs):
            drawn.update(node.outputs)
        elif node.kind not in ("Shape", "Size") and carried.intersection(node.inputs):
            carried.update(node.outputs)
    late, early = [x for x in outputs if x in drawn], [x for x in outputs if x not in drawn]
    tail, needed = _behind(known, late, stop=carried)
    seam = sorted((needed & carried) - {contract.IMAGE})
    if not seam:
        return None
    trunk, _ = _behind(known, [*seam, *early], stop=set())
    return _Plan(trunk, tail, seam, contract.IMAGE in needed, early, late)


def _behind(nodes: Sequence[_Node], wanted: Iterable[str], stop: set[str]) -> tuple[list[_Node], set[str]]:
    """Nodes that compute some values, and all values that they take."""
    needed, found = set(wanted), []
    for node in reversed(nodes):
        if any(value in needed and value not in stop for value in node.outputs):
            found.append(node)
            needed.update(value for value in node.inputs if value)
    return found[::-1], needed


def _read(field: Field) -> _Node | None:
    """A node; None for one with a graph inside, which may take any value."""
    inputs, outputs, kind = [], [], ""
    for part in fields(field.content, "node"):
        if part.number == 1:
            inputs.append(str(part.content, "utf-8"))
        elif part.number == 2:
            outputs.append(str(part.content, "utf-8"))
        elif part.number == 4:
            kind = str(part.content, "utf-8")
        elif part.number == _ATTRIBUTE and any(x.number in _SUBGRAPHS for x in fields(part.content, "attribute")):
            return None
    return _Node(field, kind, tuple(inputs), tuple(outputs))


def _name_of(field: Field) -> str:
    # What declares a value has a name and a type, two texts like an entry of the metadata.
    kind, number = ("tensor", 8) if field.number == _INITIALIZER else ("entry", 1)
    return next((str(part.content, "utf-8") for part in fields(field.content, kind) if part.number == number), "")


def _model(
    model: Sequence[Field],
    graph: Sequence[Field],
    nodes: Sequence[_Node],
    inputs: Sequence[str],
    made: Sequence[bytes],
    outputs: Sequence[str],
) -> bytes:
    """The bytes of a model with some nodes of another one."""
    used = {value for node in nodes for value in (*node.inputs, *node.outputs)}
    wanted = {_INITIALIZER: used, _INPUT: set(inputs), _OUTPUT: set(outputs), _VALUE: used - set(outputs)}
    kept = [node.field.raw for node in nodes]
    declared = set()
    for field in graph:
        if field.number == _NODE or (field.number in wanted and _name_of(field) not in wanted[field.number]):
            continue
        kept.append(field.raw)
        if field.number == _OUTPUT:
            declared.add(_name_of(field))
    kept += [memoryview(one) for one in made]
    kept += [memoryview(bytes_field(_OUTPUT, _text(1, name))) for name in outputs if name not in declared]
    parts = [field.raw for field in model if field.number not in (_GRAPH, _METADATA)]
    return b"".join([*parts, bytes_field(_GRAPH, b"".join(kept))])


def _declared(name: str, kind: str, shape: Sequence[int | str | None]) -> bytes:
    """An input of a graph, with its type as ONNX Runtime writes it."""
    dims = b"".join(
        bytes_field(1, b"\x08" + as_varint(dim) if isinstance(dim, int) else _text(2, dim) if dim else b"")
        for dim in shape
    )
    element = b"\x08" + as_varint(_TYPES[kind.removeprefix("tensor(").removesuffix(")")])
    tensor = bytes_field(1, element + bytes_field(2, dims))
    return bytes_field(_INPUT, _text(1, name) + bytes_field(2, tensor))


def _text(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode())
