"""Run a session with few copies between devices."""

from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.runtime.providers import onnxruntime


class Runner:
    """Keeps inputs on the accelerator between calls."""

    def __init__(self, session: Any, device: str | None = None) -> None:
        """Wrap a session.

        Args:
            session: From `open_session`.
            device: "cuda" or "cpu" to bind inputs there; None for the device of the session's provider.
        """
        self.session = session
        self.on_card = session.get_providers()[0] in ("CUDAExecutionProvider", "TensorrtExecutionProvider")
        """Whether a graphics card runs it."""
        self._device = device or ("cuda" if self.on_card else None)

    def place(self, values: npt.NDArray[Any]) -> Any:
        """Values as an input that several calls will take."""
        if self._device is None:
            return values
        return onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values), self._device, 0)

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        """The outputs as arrays.

        `feed` holds arrays and values of `place`.
        """
        if self._device is None:
            return self.session.run(outputs, feed)  # type: ignore[no-any-return]
        binding = self.session.io_binding()
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, self.place(value) if isinstance(value, np.ndarray) else value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]
