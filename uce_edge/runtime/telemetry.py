"""Switch off ONNX Runtime's telemetry.

From 1.29 on it writes a device id to disk and reports, unless an environment variable forbids it.
"""

import functools
import os
import sys
import warnings
from types import ModuleType

from uce_edge.errors import TelemetryWarning

SWITCH = "ORT_DISABLE_TELEMETRY"
"""The environment variable that ONNX Runtime reads once, when it is imported."""
_OFF = ("1", "true", "yes", "on")
_SINCE = (1, 29)


@functools.cache
def switch_off() -> None:
    """Disable telemetry for this process and its children.

    Must run before the import. A variable that the user set stays.
    """
    if SWITCH in os.environ:
        return
    os.environ[SWITCH] = "1"
    imported = sys.modules.get("onnxruntime")
    if imported is not None and _has_it(imported):
        warnings.warn(
            f"onnxruntime was imported before uce_edge, with its telemetry on. Set {SWITCH}=1 in the environment to "
            f"keep it off, or {SWITCH}=0 to allow it without this warning",
            TelemetryWarning,
            stacklevel=2,
        )


def state(onnxruntime: ModuleType) -> str:
    """Whether it is on, and why, in a few words."""
    if not _has_it(onnxruntime):
        return f"none in ONNX Runtime {onnxruntime.__version__}"
    value = os.environ.get(SWITCH, "")
    return f"{'off' if value.lower() in _OFF else 'on'} ({SWITCH}={value})"


def _has_it(onnxruntime: ModuleType) -> bool:
    major, minor = str(onnxruntime.__version__).split(".")[:2]
    return (int(major), int(minor)) >= _SINCE
