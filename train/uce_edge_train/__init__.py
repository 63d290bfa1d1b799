"""Train and calibrate Bayesian image classifiers with Monte Carlo dropout in PyTorch."""

from typing import TYPE_CHECKING

from uce_edge import lazy

if TYPE_CHECKING:
    from uce_edge_train.bernoulli import bernoullize
    from uce_edge_train.calibrating import calibrate
    from uce_edge_train.export import export_module, export_run
    from uce_edge_train.layers import deterministic, gaussianize, noise_from
    from uce_edge_train.recipe import Recipe
    from uce_edge_train.runs import Run
    from uce_edge_train.training import train

__all__ = [
    "Recipe",
    "Run",
    "bernoullize",
    "calibrate",
    "deterministic",
    "export_module",
    "export_run",
    "gaussianize",
    "noise_from",
    "train",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "uce_edge_train.bernoulli": ("bernoullize",),
        "uce_edge_train.calibrating": ("calibrate",),
        "uce_edge_train.export": ("export_module", "export_run"),
        "uce_edge_train.layers": ("deterministic", "gaussianize", "noise_from"),
        "uce_edge_train.recipe": ("Recipe",),
        "uce_edge_train.runs": ("Run",),
        "uce_edge_train.training": ("train",),
    },
)
