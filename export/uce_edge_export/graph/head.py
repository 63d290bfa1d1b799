"""The head: calibration map, softmax, average, entropies."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration import error_map
from uce_edge.calibration.maps import CLASS_SHIFT
from uce_edge.contract import Method
from uce_edge.metadata import Calibration
from uce_edge_export.graph import decision
from uce_edge_export.graph.builder import Builder

_TINY = np.float32(1e-30)  # p log p is 0 at p = 0; log alone is not
# Vectorised kernels round the last elements of an array differently; whole vectors of any width up to 512 bits do not.
_ALIGNMENT = 16


def emit(
    g: Builder,
    logits: ir.Value,
    samples: ir.Value | None,
    classes: int,
    calibration: Calibration,
    members: int = 1,
) -> list[ir.Value]:
    """Append the head to a graph.

    Args:
        g: Where the nodes go.
        logits: Raw logits [samples * members, batch, classes], seed by seed.
        samples: int64 [1], the number of seeds; None for a deterministic model, which has no sampling error.
        classes: Number of classes.
        calibration: The map and its parameters.
        members: The networks of an ensemble.

    Returns:
        The contract's outputs, in its order.
    """
    first, last = g.constant(np.array([0])), g.constant(np.array([-1]))
    scale = g.constant(np.float32(-1 / math.log(classes)))
    padding = -classes % _ALIGNMENT

    def aligned(x: ir.Value, rank: int) -> ir.Value:
        """Pad the classes with zeros, for equal rounding."""
        return g.Pad(x, g.constant(np.array([0] * (2 * rank - 1) + [padding]))) if padding else x

    def unit(x: ir.Value) -> ir.Value:
        return g.Clip(x, g.constant(np.float32(0)), g.constant(np.float32(1)))

    def safe_log(x: ir.Value) -> ir.Value:
        return g.Log(g.Max(x, g.constant(_TINY)))

    def cross_entropy(x: ir.Value, log_y: ir.Value) -> ir.Value:
        return g.Mul(g.ReduceSum(g.Mul(x, log_y), last, keepdims=0), scale)

    passes = g.Softmax(_emit_map(g, logits, calibration), axis=-1)
    p = g.ReduceMean(passes, first, keepdims=0)
    wide_passes, wide_p = aligned(passes, 3), aligned(p, 2)
    log_p = safe_log(wide_p)
    total = unit(cross_entropy(wide_p, log_p))
    data = g.ReduceMean(cross_entropy(wide_passes, safe_log(wide_passes)), first, keepdims=0)
    class_id = g.Cast(g.ArgMax(p, axis=-1, keepdims=0), to=ir.DataType.INT32)
    values = {
        contract.PROBABILITIES: p,
        contract.CLASS_ID: class_id,
        contract.UNCERTAINTY: total,
        contract.MODEL_UNCERTAINTY: unit(g.Sub(total, data)),
        contract.STANDARD_ERROR: _emit_standard_error(g, cross_entropy(wide_passes, log_p), samples, members),
        contract.ERROR_PROBABILITY: _emit_error(g, total, p, calibration),
        contract.PASS_PROBABILITIES: passes,
        contract.LOGITS: g.Identity(logits),
        contract.DECISION: decision.emit(g, total, p, class_id, classes),
    }
    # A name of its own: a runtime takes dimensions of one name for equally large.
    passes_of_all = "samples" if members == 1 else "samples_members"
    sizes = {"samples": passes_of_all if samples else members, "batch": "batch", "classes": classes}
    outputs = contract.outputs_of(())
    for output in outputs:
        value = values[output.name]
        value.name = output.name
        value.shape = ir.Shape(sizes[dimension] for dimension in output.dimensions)
        value.dtype = ir.DataType.from_numpy(np.dtype(output.dtype))
    return [values[output.name] for output in outputs]


def _emit_map(g: Builder, logits: ir.Value, calibration: Calibration) -> ir.Value:
    """R(z); its parameters are the initializers `calibration.*`."""

    def parameter(name: str) -> ir.Value:
        return g.constant(np.asarray(calibration.parameters[name], np.float32), f"calibration.{name}")

    match calibration.method:
        case Method.TEMPERATURE:
            logits = g.Div(logits, parameter("temperature"))
        case Method.VECTOR:
            logits = g.Mul(logits, parameter("vector"))
        case Method.AUX:
            if "temperature" in calibration.parameters:
                logits = g.Div(logits, parameter("temperature"))
            hidden = _emit_linear(g, logits, parameter("aux.w1"), parameter("aux.b1"))
            hidden = g.LeakyRelu(hidden, alpha=0.01)
            logits = g.Add(logits, _emit_linear(g, hidden, parameter("aux.w2"), parameter("aux.b2")))
    return g.Add(logits, parameter(CLASS_SHIFT)) if CLASS_SHIFT in calibration.parameters else logits


def _emit_error(g: Builder, uncertainty: ir.Value, p: ir.Value, calibration: Calibration) -> ir.Value:
    """Fitted probability of error, or 1 - max p.

    e is 1 - max p, and c is b; in what older versions fitted, e is the uncertainty.
    """
    one, last = g.constant(np.float32(1)), g.constant(np.array([-1]))

    def fitted(name: str, values: Sequence[float]) -> list[ir.Value]:
        stored = g.constant(np.array(values, np.float32), f"calibration.{name}")
        return [g.Gather(stored, g.constant(np.int64(index))) for index in range(len(values))]

    if calibration.confidence_error is not None:
        a, b = fitted("confidence_error", calibration.confidence_error)
        e, c = g.Sub(one, g.ReduceMax(p, last, keepdims=1)), b
    elif calibration.error is not None:
        a, b, c = fitted("error", calibration.error)
        e = g.Unsqueeze(uncertainty, g.constant(np.array([1])))
    else:
        return g.Sub(one, g.ReduceMax(p, last, keepdims=0))
    # A whole vector per image, for the reason given at `_ALIGNMENT`; all its entries are equal.
    edge = g.constant(np.full(_ALIGNMENT, error_map.EDGE, np.float32))
    e = g.Max(e, edge)
    rest = g.Max(g.Sub(one, e), edge)
    wide = g.Sigmoid(g.Sub(g.Add(g.Mul(g.Log(e), b), a), g.Mul(g.Log(rest), c)))
    return g.Gather(wide, g.constant(np.int64(0)), axis=1)


def _emit_linear(g: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value) -> ir.Value:
    return g.Add(g.MatMul(x, g.Transpose(weight, perm=[1, 0])), bias)


def _emit_standard_error(g: Builder, cross_entropy: ir.Value, samples: ir.Value | None, members: int) -> ir.Value:
    """Standard error of the entropy, by the delta method.

    Its standard error is that of this mean; with one pass it is unknown, and reported as 1. The members of an ensemble
    are no draws: what varies is their average.
    """
    first = g.constant(np.array([0]))
    if members > 1:
        seeds = g.constant(np.array([1])) if samples is None else samples
        by_member = g.Reshape(cross_entropy, g.Concat(seeds, g.constant(np.array([members, -1])), axis=0))
        cross_entropy = g.ReduceMean(g.Transpose(by_member, perm=[1, 0, 2]), first, keepdims=0)
    deviation = g.Sub(cross_entropy, g.ReduceMean(cross_entropy, first, keepdims=1))
    squares = g.ReduceSum(g.Mul(deviation, deviation), first, keepdims=0)
    if samples is None:
        return squares  # one pass without noise: exactly 0
    one = g.constant(np.float32(1))
    count = g.Cast(samples, to=ir.DataType.FLOAT)
    # Not a Div: MNN takes a divisor that was computed from a shape for 1.
    variance = g.Mul(squares, g.Reciprocal(g.Mul(count, g.Max(g.Sub(count, one), one))))
    return g.Where(g.Equal(count, one), one, g.Min(g.Sqrt(variance), one))
