"""Take the logits out of what a network returns."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError


def logits_of(output: Any) -> Tensor:
    """The logits [batch, classes] among a network's results.

    Args:
        output: A tensor, an object or mapping with `logits`, or a tuple that begins with them.
    """
    found = output
    if not isinstance(found, Tensor):
        found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, Tensor) or found.ndim != 2:
        shape = f" of shape {list(found.shape)}" if isinstance(found, Tensor) else ""
        raise UceEdgeError(
            f"The model returns {type(output).__name__}{shape}, and logits [batch, classes] are needed: a tensor, an "
            "object with `.logits`, or a tuple that begins with them. Wrap it in a module that returns them.",
            "head.no-logits",
        )
    return found


@contextmanager
def returning_logits(model: nn.Module, example: Tensor) -> Iterator[None]:
    """Let a network return its logits alone inside the block.

    A network that returns a tensor, or does not run, stays as it is.
    """
    model.eval()
    try:
        with torch.no_grad():
            output = model(example)
    except Exception:  # the export names the cause
        output = example
    if isinstance(output, Tensor):
        yield
        return
    logits_of(output)
    forward = model.forward

    @functools.wraps(forward)
    def logits(*args: Any, **kwargs: Any) -> Tensor:
        return logits_of(forward(*args, **kwargs))

    model.forward = logits
    try:
        yield
    finally:
        del model.forward
