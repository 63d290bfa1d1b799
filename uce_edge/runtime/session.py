"""Running a session, with as few copies between the processor and an accelerator as the device allows."""

from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.runtime.providers import onnxruntime


class Runner:
    """A session that keeps its inputs on the device between calls where that is not the processor's own memory."""

    def __init__(self, session: Any, device: str | None = None) -> None:
        """Wrap a session.

        Args:
            session: From `open_session`.
            device: "cuda" or "cpu" to bind inputs there; None for what the session's provider needs.
        """
        self.session = session
        on_card = session.get_providers()[0] in ("CUDAExecutionProvider", "TensorrtExecutionProvider")
        self._device = device or ("cuda" if on_card else None)

    def place(self, values: npt.NDArray[Any]) -> Any:
        """Values as an input that several calls will take."""
        if self._device is None:
            return values
        return onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values), self._device, 0)

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        """The outputs as arrays; `feed` has arrays and what `place` gave."""
        if self._device is None:
            return self.session.run(outputs, feed)  # type: ignore[no-any-return]
        binding = self.session.io_binding()
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, self.place(value) if isinstance(value, np.ndarray) else value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]
