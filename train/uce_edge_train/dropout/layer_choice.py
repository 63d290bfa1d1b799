"""Which weight layers of a network get noise."""

import fnmatch
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from uce_edge.errors import UceEdgeWarning, UsageError, expected
from uce_edge_export import layer_choice
from uce_edge_train.dropout.weight_products import CONVOLUTIONS, NoProductError, is_weight, product_of

_PLAIN = (nn.Linear, *CONVOLUTIONS)
# These hold matrices that multiply no input.
_NO_LAYERS = (nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.EmbeddingBag)
_LISTED = 5


class WeightLayers(NamedTuple):
    """The weight layers of a network, in registration order."""

    usable: dict[str, nn.Module]
    left_out: dict[str, str]
    """Why a layer cannot have noise, by its name."""
    first: str | None
    """The name of the first layer of all."""


class NoiseWarning(UceEdgeWarning):
    """Weight layers stay without noise."""


def weight_layers(model: nn.Module) -> WeightLayers:
    """Find layers that multiply their input by a weight."""
    usable: dict[str, nn.Module] = {}
    left_out: dict[str, str] = {}
    never_called: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.MultiheadAttention):
            never_called |= dict.fromkeys(module.modules(), "its MultiheadAttention computes it without calling it")
            left_out[name] = f"{kind}: it computes its projections without calling layers"
        elif module in never_called:
            if isinstance(module, _PLAIN):
                left_out[name] = f"{kind}: {never_called[module]}"
        elif type(module) in _PLAIN:
            usable[name] = module
        elif isinstance(module, _PLAIN) or _has_weight(module):
            try:
                product_of(module, type(module).forward)
            except NoProductError as error:
                left_out[name] = f"{kind}: {error}"
            else:
                usable[name] = module
    first = next((name for name, _ in model.named_modules() if name in usable or name in left_out), None)
    return WeightLayers(usable, left_out, first)


def _described(name: str, module: nn.Module) -> layer_choice.Layer:
    groups = getattr(module, "groups", 1)
    depthwise = groups > 1 and groups == getattr(module, "in_channels", 0)
    return layer_choice.Layer(name, isinstance(module, CONVOLUTIONS), depthwise)


def _has_weight(module: nn.Module) -> bool:
    own = module.named_parameters(recurse=False)
    return not isinstance(module, _NO_LAYERS) and any(is_weight(name, value) for name, value in own)


def rates_of(
    model: nn.Module,
    p: float | Mapping[str, float],
    skip_first: bool,
    layers: str | Collection[str] | None,
    exclude: Collection[str],
) -> dict[str, float]:
    """The rate of every layer that gets noise, in registration order.

    Warns about layers that cannot have it. Arguments as in `gaussianize`.
    """
    found = weight_layers(model)
    names = [name for name in found.usable if not (skip_first and name == found.first)]
    if not names:
        raise UsageError(
            expected(
                "`model`",
                "a module with at least two Conv or Linear layers",
                type(model).__name__,
                "Dropout needs a weight layer after the first one",
            )
        )
    rules = dict(p) if isinstance(p, Mapping) else {"*": p}
    for rate in rules.values():
        if not 0.0 < rate < 1.0:
            raise UsageError(expected("`p`", "between 0 and 1, both excluded", rate, "The paper's value is 0.2"))
    _require_matches("p", rules, names)
    choice = [layers] if isinstance(layers, str) else list(layers or ())
    described = [_described(name, found.usable[name]) for name in names]
    wished = layer_choice.chosen(described, choice, "layers", getattr(model, "noisy_tail", ()))
    _require_matches("exclude", exclude, [*found.usable, *found.left_out])

    def wanted(name: str) -> bool:
        return not _matches(name, exclude) and _matches(name, rules)

    rates = {
        name: [rules[rule] for rule in rules if _matches(name, [rule])][-1]
        for name in names
        if name in wished and wanted(name)
    }
    if not rates:
        raise UsageError(
            expected("`exclude`", "patterns that leave a layer with noise", ", ".join(exclude), "Exclude fewer layers")
        )
    named = ["*" if text == layer_choice.ALL else text for text in choice] or ["*"]
    lost = {name: reason for name, reason in found.left_out.items() if wanted(name) and _matches(name, named)}
    if lost:
        warnings.warn(_warning(lost, len(rates)), NoiseWarning, stacklevel=4)
    return rates


def _warning(lost: Mapping[str, str], noisy: int) -> str:
    some = "; ".join(f"{name} ({reason})" for name, reason in list(lost.items())[:_LISTED])
    more = f"; and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    return f"{noisy} weight layers have noise, {len(lost)} cannot have it: {some}{more}"


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _require_matches(argument: str, patterns: Iterable[str], names: Collection[str]) -> None:
    for pattern in patterns:
        if not any(_matches(name, [pattern]) for name in names):
            some = ", ".join(list(names)[-3:])
            rule = f"names or patterns of weight layers (such as {some})"
            remedy = "Names are those of model.named_modules(); the first layer takes no noise with skip_first"
            raise UsageError(expected(f"`{argument}`", rule, pattern, remedy))


_noisy_classes: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


def noisy_class(noise: type[nn.Module], plain: type[nn.Module]) -> type[nn.Module]:
    """A subclass of a layer's own class, with noise."""
    if (noise, plain) in _noisy_classes:
        return _noisy_classes[noise, plain]
    members = {"plain": plain, "__reduce_ex__": _reduced, "__module__": noise.__module__}
    made = type(f"{noise.__name__.strip('_')}{plain.__name__}", (noise, plain), members)
    _noisy_classes[noise, plain] = made
    return made


def _reduced(layer: Any, protocol: Any) -> tuple[Callable[..., nn.Module], tuple[Any, ...], dict[str, Any]]:
    """Pickle the layer by the two classes that its class is made of."""
    return _restored, type(layer).__bases__, layer.__dict__


def _restored(noise: type[nn.Module], plain: type[nn.Module]) -> nn.Module:
    kind = noisy_class(noise, plain)
    return kind.__new__(kind)
