"""Parameter groups: stages, learning rates, frozen layers."""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from uce_edge.errors import UsageError, expected
from uce_edge_train.choices import Unfreeze
from uce_edge_train.networks.hub_names import hub_names

ALL_BUT_HEAD = "all-but-head"
"""The pattern that freezes everything below the last weight layer."""
_STAGE = re.compile(r"(?:features\.)?(?:layer|denseblock|transition)(\d+)\.")
_WEIGHT_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def head_of(model: nn.Module) -> str:
    """The name of the last linear layer or convolution."""
    layers = _weight_layers(model)
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else list(layers)[-1]


def first_of(model: nn.Module) -> str:
    """The name of the first weight layer."""
    return next(iter(_weight_layers(model)))


def stages_of(model: nn.Module) -> dict[str, int]:
    """The stage of every parameter; 0 is the head.

    Residual and dense networks have the stages of their papers, and the stem. Of other networks, every module at the
    top is a stage; neighbouring single layers are one.
    """
    head, theirs, children = head_of(model), hub_names(model), dict(model.named_children())
    published = any(_STAGE.match(name) for name in theirs.values())
    keys: dict[str, str | None] = {}
    key, after_single = "", False
    for name, _ in model.named_parameters():
        if _is_in(name, head):
            keys[name] = None
            continue
        if published:
            found = _STAGE.match(theirs[name])
            key = found[1] if found else key  # what follows a stage belongs to it
        else:
            top = name.partition(".")[0]
            single = top not in children or not list(children[top].children())
            key = key if single and after_single else top
            after_single = single
        keys[name] = key
    order = list(dict.fromkeys(key for key in keys.values() if key is not None))
    place = {key: len(order) - number for number, key in enumerate(order)}
    return {name: 0 if key is None else place[key] for name, key in keys.items()}


def groups_of(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in groups of decaying learning rate.

    The head comes first; every stage below it has `decay` times its rate.
    """
    stages = stages_of(model) if decay != 1 else {}
    groups: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(stages.get(name, 0), []).append(parameter)
    return [{"params": parameters, "factor": decay**stage} for stage, parameters in sorted(groups.items())]


def frozen_weights(model: nn.Module) -> frozenset[str]:
    """Weights of the layers before the first one that is trained."""
    frozen: list[str] = []
    for name, parameter in model.named_parameters():
        is_weight = parameter.ndim > 1
        if parameter.requires_grad:
            return frozenset(frozen if is_weight else frozen[:-1])  # a bias or norm belongs to the layer before it
        if is_weight:
            frozen.append(name)
    return frozenset(frozen)


def freeze(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Freeze the weights that match patterns.

    Args:
        model: The network.
        patterns: `all-but-head`, or names of weights or modules, with the wildcards of a shell. Names of torchvision
            mean the same layers.

    Returns:
        The names of the batch-norm layers whose statistics must not move either.
    """
    if not patterns:
        return ()
    head, theirs = head_of(model), hub_names(model)
    frozen: set[str] = set()
    for pattern in patterns:
        if pattern == ALL_BUT_HEAD:
            found = {name for name in theirs if not _is_in(name, head)}
        else:
            found = {name for name, other in theirs.items() if _holds(pattern, name) or _holds(pattern, other)}
        if not found:
            some = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in theirs))
            rule = f"{ALL_BUT_HEAD}, or the name of a layer ({some[:120]}, ...)"
            raise UsageError(expected("`freeze`", rule, pattern, "Wildcards work: --freeze 'blocks.[01]'"))
        frozen |= found
    parameters = dict(model.named_parameters())
    for name in frozen & set(parameters):
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        remedy = f"Leave a layer out, or use --freeze {ALL_BUT_HEAD}"
        raise UsageError(expected("`freeze`", "a choice that leaves weights to train", ", ".join(patterns), remedy))
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and _all_in(frozen, name, module)
    )


def thaw(model: nn.Module, tail: Collection[str], choice: Unfreeze) -> tuple[str, ...]:
    """Leave the layers of a choice to train, and freeze the others.

    Args:
        model: The network.
        tail: The names of the weights behind the seam.
        choice: The layers.

    Returns:
        The names of all batch-norm layers: few images would spoil the statistics of many.
    """
    head = head_of(model)
    for name, parameter in model.named_parameters():
        chosen = choice is Unfreeze.ALL or _is_in(name, head) or (choice is Unfreeze.TAIL and name in tail)
        parameter.requires_grad_(chosen)
    return tuple(name for name, module in model.named_modules() if isinstance(module, _NormBase))


def _weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _WEIGHT_LAYERS)}
    if not layers:
        raise UsageError(
            expected("the network", "one with Conv or Linear layers", type(model).__name__, "See --arch"),
            "architecture.no-weights",
        )
    return layers


def _all_in(frozen: Collection[str], name: str, module: nn.Module) -> bool:
    return all(f"{name}.{part}" in frozen for part in module.state_dict())


def _holds(pattern: str, name: str) -> bool:
    """Whether a pattern matches a weight or its module."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _is_in(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")
