"""The product with weights inside a layer's forward pass.

A subclass of a weight layer may pad its input or compute its weight: what it multiplies is known only where it calls
`linear`, a convolution or a matrix product. `ReplacedProduct` takes such calls over, so that no list of classes is
needed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NoProductError(Exception):
    """The layer does not multiply its input by one weight."""


@dataclass(frozen=True)
class Product:
    """A call that multiplies an input by a weight."""

    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """The call as a function of input, weight and bias."""
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    outputs_first: bool = True
    """Whether the weight's first dimension is the outputs."""

    @property
    def output(self) -> Tensor:
        """Its result."""
        return self.multiply(self.input, self.weight, self.bias)

    @property
    def rows(self) -> Tensor:
        """The weight as [outputs, inputs of a group, taps...]."""
        return self.weight if self.outputs_first else self.weight.mT


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Product:
    return Product(nn.functional.linear, input, weight, bias)


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Product]:
    def read(input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any) -> Product:
        return Product(lambda x, w, b: function(x, w, b, *rest, **named), input, weight, bias)

    return read


def _matmul(input: Tensor, other: Tensor) -> Product:
    return Product(lambda x, w, b: x @ w if b is None else x @ w + b, input, other, None, outputs_first=False)


def _addmm(bias: Tensor, mat1: Tensor, mat2: Tensor) -> Product:
    return Product(lambda x, w, b: x @ w if b is None else torch.addmm(b, x, w), mat1, mat2, bias, outputs_first=False)


_READERS: Mapping[Any, Callable[..., Product]] = {
    nn.functional.linear: _linear,
    **{function: _convolution(function) for function in (torch.conv1d, torch.conv2d, torch.conv3d)},
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
}


class ReplacedProduct(TorchFunctionMode):
    """Computes the products of a block with another function."""

    def __init__(self, replacement: Callable[[Product], Tensor]) -> None:
        super().__init__()
        self._replacement = replacement

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the call if it is a product."""
        reader = _READERS.get(func)
        if reader is None:
            return func(*args, **(kwargs or {}))
        return self._replacement(reader(*args, **(kwargs or {})))


def product_of(layer: nn.Module, forward: Callable[..., object]) -> Product:
    """The product of a layer, found on random input.

    Args:
        layer: Any module.
        forward: Its class's forward, without noise.

    Raises:
        NoProductError: It has none, several, or one whose weight depends on its input.
    """
    training = layer.training
    layer.training = False  # a layer may count its calls in training
    try:
        for shape in _shapes(layer):
            try:
                first, second = (_products(layer, forward, shape, seed) for seed in (0, 1))
            except Exception as error:  # a layer raises what it likes
                reason = str(error).split("\n")[0]
                continue
            if len(first) != 1 or len(second) != 1:
                raise NoProductError(f"it has {len(first) or 'no'} products with weights, not one")
            if not torch.equal(first[0].weight, second[0].weight):
                raise NoProductError("its weight depends on its input")
            return first[0]
    finally:
        layer.training = training
    raise NoProductError(f"it does not run on a random input ({reason})")


def _products(layer: nn.Module, forward: Callable[..., object], shape: tuple[int, ...], seed: int) -> list[Product]:
    seen: list[Product] = []

    def note(product: Product) -> Tensor:
        seen.append(product)
        return product.output

    like = next(layer.parameters())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(like.device, like.dtype)
    with torch.no_grad(), ReplacedProduct(note):
        forward(layer, x)
    return seen


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    """Inputs that the layer may take."""
    if isinstance(layer, CONVOLUTIONS):
        field = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [(1, layer.in_channels, *field)]
    if isinstance(layer, nn.Linear):
        return [(1, layer.in_features)]
    weight = next(value for name, value in layer.named_parameters(recurse=False) if is_weight(name, value))
    return [(1, size) for size in dict.fromkeys(weight.shape[:2])]


def is_weight(name: str, value: Tensor) -> bool:
    """Whether a parameter is a matrix of weights by its name."""
    return "weight" in name and value.is_floating_point() and value.ndim > 1 and math.prod(value.shape) > 0
