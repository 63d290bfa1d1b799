"""Bernoulli dropout on the inputs of weight layers.

A layer with dropout is a subclass of its own class with the same parameters, so a state_dict moves freely between a
plain model and this form. Such layers call `F.dropout`, so that they train, calibrate and export as `nn.Dropout` does.
"""

from collections.abc import Collection

from torch import Tensor, nn
from torch.nn import functional as F

from uce_edge_train.dropout.layer_choice import noisy_class, rates_of


class _Dropping(nn.Module):
    """Values of the input are dropped in training mode."""

    p: float

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output for its masked input."""
        output: Tensor = super().forward(F.dropout(input, self.p, self.training))
        return output


def bernoullize(
    model: nn.Module, p: float = 0.2, *, skip_first: bool = True, layers: str | Collection[str] | None = None
) -> nn.Module:
    """Add Bernoulli dropout to weight layers, in place.

    These are the same layers that `gaussianize` changes. Every value is dropped on its own, also within a channel.
    Gaussian dropout has the same mean and variance.

    Args:
        model: Any torch module.
        p: The dropout rate, 0 < p < 1.
        skip_first: Leave the first weight layer (in registration order) without dropout.
        layers: As in `gaussianize`.

    Returns:
        The same model.
    """
    for name, rate in rates_of(model, p, skip_first, layers, ()).items():
        module = model.get_submodule(name)
        module.__class__ = noisy_class(_Dropping, type(module))
        assert isinstance(module, _Dropping)
        module.p = rate
    return model
