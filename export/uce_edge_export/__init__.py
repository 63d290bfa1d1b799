"""Export classifiers as ONNX files that measure their own uncertainty."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge_export.export_result import ExportedFile
    from uce_edge_export.file_pipeline import export_file
    from uce_edge_export.options import Options, SourceSpec
    from uce_edge_export.pipeline import Exported, export_third_party
    from uce_edge_export.recalibration import Recalibrated, recalibrate
    from uce_edge_train.export import export_module

__all__ = [
    "Exported",
    "ExportedFile",
    "Options",
    "Recalibrated",
    "SourceSpec",
    "export_file",
    "export_module",
    "export_third_party",
    "recalibrate",
]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge_export.pipeline": ("Exported", "export_third_party"),
        "uce_edge_export.export_result": ("ExportedFile",),
        "uce_edge_export.file_pipeline": ("export_file",),
        "uce_edge_export.options": ("Options", "SourceSpec"),
        "uce_edge_export.recalibration": ("Recalibrated", "recalibrate"),
        # The one arrow that points up: a module is traced by torch, which lives on the training side.
        "uce_edge_train.export": ("export_module",),
    },
)
