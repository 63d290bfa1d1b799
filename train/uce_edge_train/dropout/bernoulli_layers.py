"""Bernoulli dropout on the inputs of weight layers.

The layers are subclasses of torch's own with the same parameters, so a state_dict moves freely between a plain model
and this form. They call `F.dropout`, so that they train, calibrate and export as `nn.Dropout` does.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from uce_edge.errors import UsageError, expected
from uce_edge_train.dropout.gaussian_layers import noisy_layers


class _Dropping(nn.Module):
    """Values of the input are dropped in training mode."""

    p: float

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output for its masked input."""
        output: Tensor = super().forward(F.dropout(input, self.p, self.training))
        return output


class DroppingLinear(_Dropping, nn.Linear):
    """`nn.Linear` with dropout on its input."""


class DroppingConv1d(_Dropping, nn.Conv1d):
    """`nn.Conv1d` with dropout on its input."""


class DroppingConv2d(_Dropping, nn.Conv2d):
    """`nn.Conv2d` with dropout on its input."""


class DroppingConv3d(_Dropping, nn.Conv3d):
    """`nn.Conv3d` with dropout on its input."""


_FORMS: dict[type[nn.Module], type[_Dropping]] = {
    nn.Linear: DroppingLinear,
    nn.Conv1d: DroppingConv1d,
    nn.Conv2d: DroppingConv2d,
    nn.Conv3d: DroppingConv3d,
}


def bernoullize(model: nn.Module, p: float = 0.2, *, skip_first: bool = True) -> nn.Module:
    """Add Bernoulli dropout to Conv and Linear layers, in place.

    These are the same layers that `gaussianize` changes. Every value is dropped on its own, also within a channel.
    Gaussian dropout has the same mean and variance.

    Args:
        model: Any torch module.
        p: The dropout rate, 0 < p < 1.
        skip_first: Leave the first weight layer (in registration order) without dropout.

    Returns:
        The same model.
    """
    layers = noisy_layers(model, skip_first)
    if not 0.0 < p < 1.0:
        raise UsageError(expected("`p`", "between 0 and 1, both excluded", p, "For example: 0.1"))
    for module in layers.values():
        module.__class__ = _FORMS[type(module)]
        assert isinstance(module, _Dropping)
        module.p = p
    return model
