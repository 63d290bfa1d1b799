"""Random weights that behave like trained ones.

As the libraries draw them, they leave much of a network dead: the last scale of a residual block starts at 0, a layer
scale at 1e-6, and batch-norm has seen no image. In training it sees images with the noise that the network has then.
"""

import copy

import torch
from torch import nn

from uce_edge_train import gaussianize

_IMAGES = 4  # that batch-norm sees
_LOGITS = 2.0  # their standard deviation, about that of trained networks


def enliven(model: nn.Module, size: int, classes: int, rate: float) -> nn.Module:
    """Give scales, statistics and logits the size of those that were trained with noise."""
    images = (torch.randint(256, (_IMAGES, 3, size, size)) / 255 - 0.45) / 0.225  # as the export's check takes them
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim >= 2 and value.shape[-1] > 1 and value.std() < 1e-6:  # a head that starts at 0
                nn.init.normal_(value, std=value.shape[-1] ** -0.5)
            elif name.endswith("bias"):
                nn.init.normal_(value, std=0.05)
            elif value.numel() == max(value.shape) and value.std() < 1e-6:  # a scale
                nn.init.uniform_(value, 0.5, 1.0)
        noisy = gaussianize(copy.deepcopy(model), p=rate)
        _fit_batch_norm(noisy, images)
        answer = noisy.eval()(images)
        scale = _LOGITS / float(getattr(answer, "logits", answer).std())
        for value in noisy.parameters():
            if value.shape[0] == classes:
                value.mul_(scale)
    model.load_state_dict(noisy.state_dict())
    return model.eval()


def _fit_batch_norm(model: nn.Module, images: torch.Tensor) -> None:
    """Make every batch-norm divide by the size of its input.

    It subtracts no mean, and treats all channels alike: most of a random feature is its mean, some features are nearly
    0, and what is left of either would be mostly noise.
    """

    def fit(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        size = inputs[0].square().mean()
        norm.running_mean.zero_()
        norm.running_var.fill_(size)
        if norm.weight is not None:
            # Against epsilon, which hides the small features of small weights.
            nn.init.uniform_(norm.weight, 0.5, 1.0).mul_((1 + norm.eps / size).sqrt())

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(fit) for norm in norms]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
