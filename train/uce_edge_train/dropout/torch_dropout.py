"""PyTorch's dropout calls, kept random at inference.

Modules such as `nn.Dropout2d` and functions such as `F.dropout` are the same here: a mode of PyTorch sees every call in
a forward pass, in order. While a network is traced, a call leaves a mark in the graph. While it runs under given
noise, a call is made in training mode, with a mask from that noise instead of a random one. Everything else, batch-norm
above all, stays as it is in evaluation mode.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge_export.noise.perturbations.bernoulli import threshold
from uce_edge_export.source.dropout_marks import check_rate
from uce_edge_train.dropout.gaussian_layers import Noise
from uce_edge_train.dropout.noise_draws import standard_normal

Normals = Callable[[int, Tensor], Tensor]
"""Given the number of a call and a tensor in the shape of its mask, standard normals of that shape."""

_KINDS: dict[Callable[..., Any], PerturbationKind] = {
    F.dropout: PerturbationKind.BERNOULLI,
    F.dropout1d: PerturbationKind.BERNOULLI_CHANNEL,
    F.dropout2d: PerturbationKind.BERNOULLI_CHANNEL,
    F.dropout3d: PerturbationKind.BERNOULLI_CHANNEL,
    F.alpha_dropout: PerturbationKind.ALPHA,
    F.feature_alpha_dropout: PerturbationKind.ALPHA_CHANNEL,
    torch.dropout: PerturbationKind.BERNOULLI,
    torch.dropout_: PerturbationKind.BERNOULLI,
    torch.feature_dropout: PerturbationKind.BERNOULLI_CHANNEL,
    torch.feature_dropout_: PerturbationKind.BERNOULLI_CHANNEL,
    torch.alpha_dropout: PerturbationKind.ALPHA,
    torch.alpha_dropout_: PerturbationKind.ALPHA,
    torch.feature_alpha_dropout: PerturbationKind.ALPHA_CHANNEL,
    torch.feature_alpha_dropout_: PerturbationKind.ALPHA_CHANNEL,
}
# These take [channels, ...] of so many dimensions for one image without a batch.
_WITHOUT_BATCH = {F.dropout1d: 2, F.dropout3d: 4}
_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Call:
    """One call of dropout in a forward pass."""

    p: float
    kind: PerturbationKind


def layer_names(model: nn.Module) -> list[str]:
    """The dropout modules of a network that do something."""
    return [name for name, layer in model.named_modules() if isinstance(layer, _LAYERS) and layer.p > 0]


@torch.library.custom_op("uce_edge::dropout", mutates_args=())
def marker(x: Tensor, call: int) -> Tensor:
    """The marker of a dropout call in a traced graph."""
    return x.clone()


@marker.register_fake
def _(x: Tensor, call: int) -> Tensor:
    return torch.empty_like(x)


class _Calls(TorchFunctionMode):
    """Records every dropout call with a rate above 0."""

    always = True
    """Whether calls count that are switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Call] = []
        self.fused: list[str] = []
        """Functions that drop values inside, where no mask can be given."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _KINDS:
            if func is F.scaled_dot_product_attention and _attention_rate(*args, **kwargs) > 0:
                self.fused.append(func.__name__)
            return func(*args, **kwargs)
        x, p, training, in_place = _arguments(*args, **kwargs)
        return x if p == 0 or not (training or self.always) else self.call(func, x, p, in_place)

    def call(self, func: Callable[..., Any], x: Tensor, p: float, in_place: tuple[bool, ...]) -> Tensor:
        """A call with a rate above 0."""
        self.seen.append(Call(p, _KINDS[func]))
        return x


def _arguments(
    input: Tensor, p: float = 0.5, training: bool = True, *in_place: bool, **more: bool
) -> tuple[Tensor, float, bool, tuple[bool, ...]]:
    """Input, rate, training mode and in-place flag of a call."""
    # torch.dropout and the like call it `train`.
    training = more.get("train", training)
    return input, p, training, in_place or tuple(value for name, value in more.items() if name == "inplace")


def _attention_rate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *_: Any,
    **__: Any,
) -> float:
    return dropout_p


class _Survey(_Calls):
    """Rejects calls whose mask is not per image."""

    def call(self, func: Callable[..., Any], x: Tensor, p: float, in_place: tuple[bool, ...]) -> Tensor:
        """The input as it is."""
        check_rate(p, f"of call {len(self.seen) + 1} ({func.__name__})")
        if x.ndim == _WITHOUT_BATCH.get(func):
            raise UceEdgeError(
                f"{func.__name__} takes the images of a batch for channels where its input has {x.ndim} dimensions, so "
                "their answers would depend on each other. Use nn.Dropout there.",
                "dropout.batch-as-channels",
            )
        return super().call(func, x, p, in_place)


class Tracing(_Calls):
    """Leaves a mark for every call."""

    def call(self, func: Callable[..., Any], x: Tensor, p: float, in_place: tuple[bool, ...]) -> Tensor:
        """A mark, which holds the number of the call."""
        number = len(self.seen)
        super().call(func, x, p, in_place)
        marked: Tensor = marker(x, number)
        return marked


class _Masked(_Calls):
    """Applies every call with a mask from given noise."""

    def __init__(self, normals: Normals, kept: Collection[int] | None) -> None:
        super().__init__()
        self._normals, self._kept = normals, kept

    def call(self, func: Callable[..., Any], x: Tensor, p: float, in_place: tuple[bool, ...]) -> Tensor:
        """The masked input, computed by PyTorch."""
        number = len(self.seen)
        super().call(func, x, p, in_place)
        if self._kept is not None and number not in self._kept:
            return x
        with _GivenMask(lambda mask: self._normals(number, mask) > float(threshold(p))):
            dropped: Tensor = func(x, p, True, *in_place)
        return dropped


class _Training(_Masked):
    """Applies given masks to calls in training mode only."""

    always = False


class _GivenMask(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces the random mask of a dropout call."""

    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mask = mask

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self._mask(args[0]))
        if func is torch.ops.aten.native_dropout.default:  # what graphics cards have for plain dropout
            x, p, _ = args
            mask = self._mask(torch.empty_like(x))
            return x * mask / (1 - p), mask
        return func(*args, **(kwargs or {}))


@contextmanager
def removed() -> Iterator[None]:
    """Switch all dropout calls off inside the block."""
    with _Calls():
        yield


@contextmanager
def masks_from(normals: Normals, kept: Collection[int] | None = None) -> Iterator[None]:
    """Apply dropout with given masks, for one forward pass.

    Args:
        normals: What becomes masks.
        kept: The calls that are random, the others do nothing; None for all.
    """
    with _Masked(normals, kept):
        yield


@contextmanager
def training_with(noise: Noise | torch.Generator) -> Iterator[None]:
    """Draw training masks from this noise, for one forward pass.

    PyTorch's global generator would not repeat them in a resumed training.
    """

    def normals(call: int, mask: Tensor) -> Tensor:
        return standard_normal(mask, noise) if isinstance(noise, torch.Generator) else noise(f"{call}", mask)

    with _Training(normals, None):
        yield


def refuse_unreachable(model: nn.Module, example: Tensor) -> None:
    """Reject a network with dropout that tracing cannot see.

    Args:
        model: The network.
        example: What it takes.

    Raises:
        UsageError: It has no dropout at all.
        UceEdgeError: Some of it cannot be reached.
    """
    for name, layer in model.named_modules():
        inside = _inside(layer)
        if inside is not None:
            raise UceEdgeError(
                f"The dropout of {name or type(model).__name__} is inside a {inside} and cannot be kept. Set its rate "
                "to 0, or write the block with nn.Dropout.",
                "dropout.fused",
            )
    shown, trained = (_calls(model, example, training) for training in (False, True))
    if trained.fused:
        raise UceEdgeError(
            f"The dropout inside {trained.fused[0]} is in a fused block and cannot be kept. Set its rate to 0, or "
            "write the block with nn.Dropout.",
            "dropout.fused",
        )
    hidden = len(trained.seen) - len(shown.seen)
    if hidden > 0:
        raise UceEdgeError(
            f"{hidden} of {len(trained.seen)} calls of dropout happen in training mode alone, so the graph does not "
            "show them. Call F.dropout(x, p, self.training) without an if around it.",
            "dropout.training-only",
        )
    if not shown.seen:
        zero = [name for name, layer in model.named_modules() if isinstance(layer, _LAYERS)]
        cause = f"the rate of {', '.join(zero)} is 0" if zero else "it has no dropout"
        raise UsageError(
            f"{type(model).__name__} has nothing to keep: {cause}. Leave --dropout keep (dropout=) out.",
            "dropout.missing",
        )


def _inside(layer: nn.Module) -> str | None:
    """The kind of block that hides its dropout."""
    if isinstance(layer, torch.jit.ScriptModule):
        return "scripted block" if "ropout" in str(layer.original_name) else None
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
        return "fused block (nn.MultiheadAttention)"
    if isinstance(layer, nn.RNNBase) and layer.dropout > 0:
        return f"fused block (nn.{type(layer).__name__})"
    return None


def _calls(model: nn.Module, example: Tensor, training: bool) -> _Calls:
    """Dropout calls of a forward pass; batch-norm stays frozen."""
    network = copy.deepcopy(model).train(training)
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            layer.eval()
    calls = _Survey()
    with torch.no_grad(), calls:
        network(example)
    return calls
