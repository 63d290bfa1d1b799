"""Random weights that behave like trained ones.

As the libraries draw them, they leave much of a network dead: the last scale of a residual block starts at 0, a layer
scale at 1e-6, and batch-norm has seen no image.
"""

import torch
from torch import nn

_IMAGES = 4  # that batch-norm sees
_LOGITS = 2.0  # their standard deviation, about that of trained networks


def enliven(model: nn.Module, size: int, classes: int) -> nn.Module:
    """Give scales, statistics and logits the size of trained ones."""
    images = torch.randn(_IMAGES, 3, size, size)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim >= 2 and value.shape[-1] > 1 and value.std() < 1e-6:  # a head that starts at 0
                nn.init.normal_(value, std=value.shape[-1] ** -0.5)
            elif name.endswith("bias"):
                nn.init.normal_(value, std=0.05)
            elif value.numel() == max(value.shape) and value.std() < 1e-6:  # a scale
                nn.init.uniform_(value, 0.5, 1.0)
        _fit_batch_norm(model, images)
        answer = model.eval()(images)
        scale = _LOGITS / float(getattr(answer, "logits", answer).std())
        for value in model.parameters():
            if value.shape[0] == classes:
                value.mul_(scale)
    return model


def _fit_batch_norm(model: nn.Module, images: torch.Tensor) -> None:
    """Make every batch-norm divide by the size of its input.

    It subtracts no mean, and treats all channels alike: most of a random feature is its mean, some features are nearly
    0, and what is left of either would be mostly noise.
    """

    def fit(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        norm.running_mean.zero_()
        norm.running_var.fill_(inputs[0].square().mean())

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(fit) for norm in norms]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
