"""Combine contract files into one ensemble.

The networks stand side by side in one graph, without their heads, and their logits [samples, batch, classes] become
[samples * members, batch, classes], seed by seed. Constants that are equal are kept once. So is what is computed alike:
the pixels as the networks take them, the noise of members of one architecture, a trunk that several members have.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge import contract
from uce_edge.contract import Inference, Posterior, Sigma
from uce_edge.datasets import overlap
from uce_edge.errors import UsageError
from uce_edge.metadata import Calibration, Costs, Hashes, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.check import parity_gate
from uce_edge_export.graph import assembly, head
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.novelty_score import detach
from uce_edge_export.graph.weight_layers import bytes_of, multiplications, weight_of
from uce_edge_export.pipeline import Built, Exported, random_pixels
from uce_edge_export.publish.draft import Draft, destination, graph_of
from uce_edge_export.transform.baked_seeds import bake_seeds
from uce_edge_export.transform.noise_free import MEMBERS, TABLE, ancestors, raw_logits
from uce_edge_export.transform.simplification import infer_shapes

_RANDOM = ("RandomNormalLike",)


def combine(
    files: Sequence[str | Path],
    out: str | Path,
    images: npt.NDArray[Any] | None = None,
    *,
    samples: int | None = None,
    baked: bool = False,
) -> Exported:
    """Write an uncalibrated ensemble of model files.

    Args:
        files: Two contract files or more, of the same classes and images.
        out: The `.onnx` file.
        images: Images for the gate, as the file takes them; None for random pixels.
        samples: The default number of seeds, which every member runs; None for the largest of the members' own.
        baked: Make the seeds a constant: the file takes an image alone.
    """
    with destination(out) as save:
        built = join([Model(file, "cpu") for file in files], [str(file) for file in files], images, samples, baked)
        save(built.draft)
    return Exported(Path(out), built.metadata, built.parity)


def join(
    models: Sequence[Model],
    names: Sequence[str],
    images: npt.NDArray[Any] | None = None,
    samples: int | None = None,
    baked: bool = False,
) -> Built:
    """Build an ensemble in memory; see `combine`.

    Args:
        models: The members.
        names: Their names, for messages.
        images: As in `combine`.
        samples: As in `combine`.
        baked: As in `combine`.
    """
    described = described_together([model.metadata for model in models], names)
    if samples is not None and described.inference is not Inference.DETERMINISTIC:
        contract.pass_seeds(samples, 0)
        described = replace(described, samples=samples)
    if baked and described.inference is Inference.DETERMINISTIC:
        raise UsageError(
            "Only a model that takes seeds can have them baked in: leave --bake-samples out.", "export.seeds-missing"
        )
    graph, metadata = merged([graph_of(model) for model in models], [model.metadata for model in models], described)
    images = random_pixels(metadata.image) if images is None else images[:3]
    draft = Draft.of(graph, metadata)
    parity = parity_gate.check_members(draft.model, models, images)
    parity_gate.check_again(draft, images)
    if baked:
        bake_seeds(draft)
    return Built(draft, parity)


def described_together(members: Sequence[Metadata], names: Sequence[str]) -> Metadata:
    """Metadata of an ensemble; rejects networks that cannot be members.

    Args:
        members: The metadata of each file.
        names: Their names, for messages.
    """
    first = members[0]
    if len(members) < 2:
        raise UsageError(
            f"An ensemble needs at least two members, but got {names[0]} alone. Add others.", "ensemble.one-member"
        )
    for name, member in zip(names, members, strict=True):
        if member.members > 1:
            raise UsageError(f"{name} is an ensemble itself. Give the files of its members instead.", "ensemble.nested")
        if member.posterior is Posterior.LAPLACE:
            raise UsageError(
                f"{name} has a Laplace posterior, which a member cannot have. Give one made by: export --inference "
                "deterministic",
                "ensemble.laplace-member",
            )
        if member.baked:
            raise UsageError(
                f"{name} has its passes baked in. Export it again without --bake-samples.", "ensemble.baked-member"
            )
    _agree(members, names, "classes", lambda one: ", ".join(one.classes))
    _agree(members, names, "images", _image)
    _agree(members, names, "inference", lambda one: one.inference.value)
    _agree(members, names, "noise", lambda one: one.noise.value)
    _agree(members, names, "precision", lambda one: one.precision.value)
    _refuse_twice(members, names)
    networks = Counter(member.architecture or "unknown" for member in members)
    return replace(
        first.without_promises(),
        contract=contract.VERSION,
        minor=contract.MINOR,
        outputs=(),
        posterior=Posterior.ENSEMBLE,
        members=len(members),
        architecture=", ".join(f"{count} x {name}" if count > 1 else name for name, count in networks.items()),
        samples=max(member.samples for member in members),
        sigma=members[0].sigma if len({member.sigma for member in members}) == 1 else Sigma.EXACT,
        layers=tuple(
            replace(layer, name=f"{number}: {layer.name}")
            for number, member in enumerate(members)
            for layer in member.layers
        ),
        calibration=Calibration(),
        novelty_layers=first.novelty_layers if len({member.novelty_layers for member in members}) == 1 else (),
        costs=_costs([member.costs for member in members]),
        card={},
        trained_on=overlap.union([member.trained_on for member in members]),
        seen=tuple(dict.fromkeys(name for member in members for name in member.seen)),
        hashes=_hashes([member.hashes for member in members]),
        tools={name: version for member in reversed(members) for name, version in member.tools.items()},
    )


def merged(models: Sequence[ir.Model], members: Sequence[Metadata], metadata: Metadata) -> tuple[ir.Model, Metadata]:
    """One graph with all members.

    Args:
        models: Contract models.
        members: The metadata of each.
        metadata: Of the ensemble.

    Returns:
        The graph, and its metadata, with the costs of what the members share counted once.
    """
    side_by_side = _SideBySide(metadata)
    logits = [side_by_side.add(detach(model, one)[0]) for model, one in zip(models, members, strict=True)]
    g, classes = side_by_side.g, len(metadata.classes)
    joined = g.Concat(*logits, axis=1)
    joined.name = MEMBERS
    samples = None
    if metadata.inference is Inference.DETERMINISTIC:
        shape = g.constant(np.array([len(models), -1, classes]))
    else:
        samples = g.Shape(side_by_side.inputs[contract.SEEDS], start=0, end=1)
        batch = g.Shape(side_by_side.inputs[contract.IMAGE], start=0, end=1)
        shape = g.Concat(g.constant(np.array([-1])), batch, g.constant(np.array([classes])), axis=0)
    outputs = head.emit(g, g.Reshape(joined, shape), samples, classes, metadata.calibration, len(models))
    shared = [side_by_side.uses[node] - 1 for node in g.nodes]
    model = assembly.finish(g, list(side_by_side.inputs.values()), outputs, metadata)
    if metadata.costs is not None:
        metadata = replace(metadata, costs=_shared_costs(metadata.costs, infer_shapes(model).graph, shared))
    return model, metadata


class _SideBySide:
    """Copy networks into one builder; share equal computations."""

    def __init__(self, metadata: Metadata) -> None:
        self.g = Builder()
        spec = metadata.image
        dtype = ir.DataType.UINT8 if spec.dtype == "uint8" else ir.DataType.FLOAT
        self.inputs = {contract.IMAGE: ir.val(contract.IMAGE, dtype, ("batch", spec.height, spec.width, spec.channels))}
        if metadata.takes_seeds:
            self.inputs[contract.SEEDS] = ir.val(contract.SEEDS, ir.DataType.INT32, ("samples",))
        self.uses: Counter[ir.Node] = Counter()
        """How many members need a node."""
        self._written: dict[Hashable, list[ir.Value]] = {}
        self._members = 0

    def add(self, model: ir.Model) -> ir.Value:
        """Copy a network; returns its raw logits [samples, batch, classes]."""
        copied = {value: self.inputs[str(value.name)] for value in model.graph.inputs}

        def operand(value: ir.Value | None) -> ir.Value | None:
            if value is None or value in copied:
                return None if value is None else copied[value]
            assert value.const_value is not None
            name = str(value.name)
            if name == contract.VARIANCE_SCALE:
                name = f"member.{self._members}.variance_scale"
            copied[value] = self.g.constant(value.const_value.numpy(), name)
            return copied[value]

        logits = raw_logits(model.graph)
        needed = ancestors(logits)
        for node in model.graph:
            if node in needed:
                outputs = self._write(node, [operand(value) for value in node.inputs])
                copied |= dict(zip(node.outputs, outputs, strict=True))
        self._members += 1
        return copied[logits]

    def _write(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
        attributes = tuple(sorted(ir.to_proto(value).SerializeToString() for value in node.attributes.values()))
        key: Hashable = (node.domain, node.op_type, tuple(inputs), attributes)
        if node.op_type in _RANDOM:
            key = node  # another one each time
        if key not in self._written:
            outputs = self.g.copy(node, inputs)
            for old, new in zip(node.outputs, outputs, strict=True):
                new.type, new.shape = old.type, old.shape
            self._written[key] = outputs
        outputs = self._written[key]
        producer = outputs[0].producer()
        assert producer is not None
        self.uses[producer] += 1
        return outputs


def _agree(members: Sequence[Metadata], names: Sequence[str], what: str, value: Callable[[Metadata], str]) -> None:
    """Refuse members that differ in something, by name."""
    for name, member in zip(names[1:], members[1:], strict=True):
        if value(member) != value(members[0]):
            raise UsageError(
                f"The members of an ensemble have the same {what}, but {names[0]} has {value(members[0])}, and {name} "
                f"has {value(member)}. Leave one of them out, or export it anew.",
                "ensemble.different-members",
            )


def _image(metadata: Metadata) -> str:
    return metadata.image.words


def _refuse_twice(members: Sequence[Metadata], names: Sequence[str]) -> None:
    """Two copies of one network are not two opinions."""
    known: dict[str, str] = {}
    for name, member in zip(names, members, strict=True):
        digest = member.hashes.weights or member.hashes.source
        if digest is not None and digest in known:
            raise UsageError(
                f"{known[digest]} and {name} have the same weights: leave one of them out.", "ensemble.same-weights"
            )
        known |= {} if digest is None else {digest: name}


def _costs(costs: Sequence[Costs | None]) -> Costs | None:
    """Costs of all members; memory is that of the largest."""
    known = [one for one in costs if one is not None]
    if len(known) < len(costs):
        return None
    sizes = [one.bytes_per_pass for one in known if one.bytes_per_pass is not None]
    draws = [one.bytes_per_draw for one in known if one.bytes_per_draw is not None]
    return Costs(
        sum(one.macs_once for one in known),
        sum(one.macs_per_pass for one in known),
        max(sizes) if len(sizes) == len(known) else None,
        sum(draws) if len(draws) == len(known) else None,
    )


def _shared_costs(costs: Costs, network: ir.Graph, shared: Sequence[int]) -> Costs:
    """Costs of an ensemble without the nodes that members share."""
    twice = [(node, times) for node, times in zip(network, shared, strict=True) if times > 0]
    saved = sum(times * multiplications(node) for node, times in twice if weight_of(node))
    # Noise that several members take stays in memory until the last of them has run.
    noise = [node for node, _ in twice if any(value is not None and value.name == TABLE for value in node.inputs)]
    held = None if costs.bytes_per_pass is None else costs.bytes_per_pass + sum(bytes_of(n.outputs[0]) for n in noise)
    return replace(costs, macs_once=max(costs.macs_once - saved, 0), bytes_per_pass=held)


def _hashes(hashes: Sequence[Hashes]) -> Hashes:
    """Combine the digests of the members, and their common splits."""

    def together(digests: list[str | None]) -> str | None:
        known = [digest for digest in digests if digest is not None]
        return hashlib.sha256("".join(known).encode()).hexdigest() if known else None

    common = {
        name: digest
        for name, digest in hashes[0].splits.items()
        if all(one.splits.get(name) == digest for one in hashes)
    }
    return Hashes(
        source=together([one.source for one in hashes]),
        splits=common,
        weights=together([one.weights for one in hashes]),
    )
