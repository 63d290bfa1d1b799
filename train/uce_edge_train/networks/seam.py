"""Split a network into a trunk and a tail.

The trunk's output is computed once; the tail is trained, and drawn from, on it.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uce_edge_train.dropout.gaussian_layers import deterministic, gaussian_layers

_CLOSE = 1e-4  # of the largest logit


class Seam(NamedTuple):
    """A network in two parts, which share its weights."""

    name: str
    """The first layer of the tail."""
    trunk: Callable[[Tensor], Tensor]
    """From normalised images to the input of the tail, without gradients and noise."""
    tail: nn.Module
    """From the output of the trunk to logits."""


class _Reached(Exception):
    """The seam is reached; carries its input."""


def find(model: nn.Module, example: Tensor) -> str | None:
    """The layer that reduces the resolution last; None if there is none.

    Args:
        model: The network.
        example: Two normalised images.
    """
    shapes: dict[str, tuple[int, int]] = {}
    last = 0
    names = {module: name for name, module in model.named_modules() if name}

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal last
        before = inputs[0] if len(inputs) == 1 else None
        if not (isinstance(before, Tensor) and isinstance(output, Tensor) and before.ndim == output.ndim == 4):
            return
        shapes[names[module]] = before.shape[2:].numel(), output.shape[2:].numel()
        if isinstance(module, nn.Conv2d) and output.shape[2:].numel() > 1:
            last = output.shape[2:].numel()

    hooks = [module.register_forward_hook(note) for module in names]
    try:
        with torch.no_grad(), deterministic(model):
            model.eval()(example)
    finally:
        for hook in hooks:
            hook.remove()

    def inside(module: nn.Module, prefix: str) -> str | None:
        for name, child in module.named_children():
            before, after = shapes.get(prefix + name, (0, 0))
            if before > last == after:
                deeper = inside(child, f"{prefix}{name}.") if isinstance(child, nn.Sequential) else None
                return deeper or prefix + name
        return None

    return inside(model, "")


def weights_behind(model: nn.Module, name: str | None) -> frozenset[str]:
    """The weights of the tail, by name; all without a seam."""
    return frozenset((model if name is None else _without_trunk(model, name.split("."))).state_dict())


def split(model: nn.Module, name: str, example: Tensor) -> Seam | None:
    """Split a network before one of its layers; puts it into eval mode.

    Args:
        model: The network.
        name: The first layer of the tail.
        example: Two normalised images.

    Returns:
        The parts; None if the layers before the seam have noise or no weights, or if the tail computes other logits
        than the network.
    """
    tail = _without_trunk(model, name.split("."))
    noise_before = set(gaussian_layers(model)) != set(gaussian_layers(tail))
    if noise_before or len(tail.state_dict()) == len(model.state_dict()):
        return None
    seam = Seam(name, lambda images: _trunk(model, name, images), tail)
    model.eval()
    tail.eval()
    try:
        with torch.no_grad(), deterministic(model):
            expected, found = model(example), tail(seam.trunk(example))
    except Exception:  # whatever the network expects of images, it did not get
        return None
    same = found.shape == expected.shape
    return seam if same and bool((found - expected).abs().max() <= _CLOSE * expected.abs().max()) else None


def before_noise(model: nn.Module, example: Tensor) -> Seam | None:
    """Split a network before its first noisy layer, or what holds it.

    None if it cannot be split there. Arguments as in `split`.
    """
    path = next(iter(gaussian_layers(model)), "").split(".")
    names = [".".join(path[:count]) for count in range(len(path), 0, -1)]
    return next((seam for name in names if name and (seam := split(model, name, example)) is not None), None)


def _trunk(model: nn.Module, name: str, images: Tensor) -> Tensor:
    def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _Reached(inputs[0])

    hook = model.get_submodule(name).register_forward_pre_hook(stop)
    try:
        with torch.no_grad(), deterministic(model):
            model(images)
    except _Reached as reached:
        output: Tensor = reached.args[0]
        return output
    finally:
        hook.remove()
    raise AssertionError(f"{name} was not called")


def _without_trunk(module: nn.Module, path: list[str]) -> nn.Module:
    """A view of a network whose layers before the seam do nothing."""
    view = copy.copy(module)
    view._modules = dict(module._modules)
    first, *rest = path
    for name, child in module._modules.items():
        if name == first:
            break
        if child is not None:
            view._modules[name] = nn.Identity()
    inner = module._modules[first]
    if rest and inner is not None:
        view._modules[first] = _without_trunk(inner, rest)
    return view
