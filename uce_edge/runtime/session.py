"""Run a session with few copies between devices."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.runtime.providers import CARDS, onnxruntime

_GRAPHS = 8  # captured at most: each keeps the memory of its shapes


class Runner:
    """Keeps inputs on the accelerator between calls."""

    def __init__(self, session: Any, device: str | None = None, card: int = 0, captures: bool = False) -> None:
        """Wrap a session.

        Args:
            session: From `open_session`.
            device: "cuda" or "cpu" to bind inputs there; None for the device of the session's provider.
            card: The number of the card.
            captures: Whether the provider captures calls as CUDA graphs, which read and write the same memory always.
        """
        self.session = session
        self.on_card = session.get_providers()[0] in CARDS
        """Whether a graphics card runs it."""
        self._device, self._card = device or ("cuda" if self.on_card else None), card
        self._captures = captures and self._device is not None
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        self._lock = threading.Lock()

    def place(self, values: npt.NDArray[Any]) -> Any:
        """Values as an input that several calls will take."""
        if self._device is None or self._captures:
            return values
        return onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values), self._device, self._card)

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        """The outputs as arrays.

        `feed` holds arrays and values of `place`.
        """
        if self._device is None:
            return self.session.run(outputs, feed)  # type: ignore[no-any-return]
        if self._captures:
            with self._lock:  # all calls of a graph share its memory
                return self._replayed(outputs, feed)
        binding = self.session.io_binding()
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, self.place(value) if isinstance(value, np.ndarray) else value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _replayed(self, outputs: list[str], feed: dict[str, npt.NDArray[Any]]) -> list[Any]:
        """Capture the first call of every shape, and replay it for the others."""
        key = (*outputs, *((name, values.shape) for name, values in feed.items()))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._bound(outputs, feed)
            if len(self._graphs) < _GRAPHS:
                graph.number = len(self._graphs) + 1
                self._graphs[key] = graph
        for name, values in feed.items():
            graph.inputs[name].update_inplace(np.ascontiguousarray(values))
        self.session.run_with_iobinding(graph.binding, self._options(graph.number))
        return [value.numpy() for value in graph.outputs]

    def _bound(self, outputs: list[str], feed: dict[str, npt.NDArray[Any]]) -> "_Graph":
        """Memory for the inputs and outputs of one shape; a plain call shows how much."""
        value_of = onnxruntime().OrtValue
        inputs = {  # copies: on a processor, the value shares the memory of its array, which later calls overwrite
            name: value_of.ortvalue_from_numpy(np.array(values, order="C"), self._device, self._card)
            for name, values in feed.items()
        }
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding, self._options(None))
        found = [value.numpy() for value in binding.get_outputs()]
        binding.clear_binding_outputs()
        kept = [value_of.ortvalue_from_numpy(np.zeros_like(one), self._device, self._card) for one in found]
        for name, value in zip(outputs, kept, strict=True):
            binding.bind_ortvalue_output(name, value)
        return _Graph(binding, inputs, kept)

    def _options(self, number: int | None) -> Any:
        """Options of a call: the graph that it is captured as; None for a plain call."""
        options = onnxruntime().RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(-1 if number is None else number))
        return options


@dataclass
class _Graph:
    """A captured call and its memory."""

    binding: Any
    inputs: dict[str, Any]
    outputs: list[Any]
    number: int | None = None
    """None for a shape too many, which is not captured."""
