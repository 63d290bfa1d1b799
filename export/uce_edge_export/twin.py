"""The deterministic twin: a PyTorch classifier as a plain ONNX graph with batch-norm folded."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch
from torch import nn

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph import OPSET
from uce_edge_train.layers import deterministic, gaussian_layers


def export_twin(model: nn.Module, channels: int, height: int, width: int) -> ir.Model:
    """Export a model without its noise; weights keep their parameter names."""
    broken = [name for name, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise UceEdgeError(
            f"The weights hold NaN or infinity (first in {broken[0]}); nothing was written. "
            "Train again, for example with a smaller --learning-rate."
        )
    model.eval()
    example = torch.zeros(2, channels, height, width)  # 2: a batch of 1 would be specialised away
    with deterministic(model), torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        except Exception as error:  # the exporter raises many kinds; each is a model it cannot trace
            raise UceEdgeError(f"PyTorch could not export the model: {str(error).splitlines()[0]}") from error
    assert program is not None
    return program.model


def rates_of(model: nn.Module) -> dict[str, float]:
    """Dropout rate by weight name, as the graph pass wants it."""
    return {f"{name}.weight": layer.p for name, layer in gaussian_layers(model).items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports every step and missing optional packages; a failure is an exception anyway."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
