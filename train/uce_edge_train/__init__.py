"""Train and calibrate Bayesian image classifiers with Monte Carlo Gaussian dropout in PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uce_edge_train.layers import deterministic, gaussianize, noise_from

__all__ = ["deterministic", "gaussianize", "noise_from"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are used: the command line reads this package before it needs torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uce_edge_train import layers

    return getattr(layers, name)
