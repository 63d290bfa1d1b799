"""Fetches onnxruntime-web before a wheel is built, so that no wheel comes without it."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FetchHook(BuildHookInterface[Any]):
    """Runs `fetch.py`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        runpy.run_path(str(Path(self.root) / "fetch.py"))["fetch"]()
