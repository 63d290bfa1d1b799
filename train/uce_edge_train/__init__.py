"""Train and calibrate image classifiers with Monte Carlo dropout."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge_train.calibration import calibrate
    from uce_edge_train.dropout.bernoulli_layers import bernoullize
    from uce_edge_train.dropout.gaussian_layers import deterministic, gaussianize, noise_from
    from uce_edge_train.export import export_module, export_run
    from uce_edge_train.loop.training import train
    from uce_edge_train.networks.description import describe
    from uce_edge_train.recipe import Recipe
    from uce_edge_train.runs import Run

__all__ = [
    "Recipe",
    "Run",
    "bernoullize",
    "calibrate",
    "describe",
    "deterministic",
    "export_module",
    "export_run",
    "gaussianize",
    "noise_from",
    "train",
]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge_train.dropout.bernoulli_layers": ("bernoullize",),
        "uce_edge_train.calibration": ("calibrate",),
        "uce_edge_train.export": ("export_module", "export_run"),
        "uce_edge_train.dropout.gaussian_layers": ("deterministic", "gaussianize", "noise_from"),
        "uce_edge_train.networks.description": ("describe",),
        "uce_edge_train.recipe": ("Recipe",),
        "uce_edge_train.runs": ("Run",),
        "uce_edge_train.loop.training": ("train",),
    },
)
