"""The text that names a device: `cuda:1,use_tf32=1`.

A device, the number of a card, and options of its execution provider. ONNX Runtime would report a wrong option deep
inside its start, and then run on the CPU, so options are checked here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from uce_edge.errors import UsageError, argument, expected


class Device(StrEnum):
    """Where a model runs."""

    AUTO = "auto"
    """CUDA when it really works, otherwise the CPU; warns if CUDA was offered and failed."""
    CPU = "cpu"
    """The CPU."""
    CUDA = "cuda"
    """CUDA or an error, never a silent fallback."""
    TENSORRT = "tensorrt"
    """TensorRT or an error; what it does not take runs on CUDA."""
    OPENVINO = "openvino"
    """OpenVINO's provider or an error."""


class _Kind(Enum):
    """What an option's value may be."""

    SWITCH = "0 or 1"
    NUMBER = "a whole number"
    TEXT = "a text"


_OPTIONS = {
    Device.CUDA: {
        "gpu_mem_limit": _Kind.NUMBER,
        "arena_extend_strategy": _Kind.TEXT,
        "cudnn_conv_algo_search": _Kind.TEXT,
        "cudnn_conv_use_max_workspace": _Kind.SWITCH,
        "cudnn_conv1d_pad_to_nc1d": _Kind.SWITCH,
        "do_copy_in_default_stream": _Kind.SWITCH,
        "enable_cuda_graph": _Kind.SWITCH,
        "prefer_nhwc": _Kind.SWITCH,
        "tunable_op_enable": _Kind.SWITCH,
        "tunable_op_tuning_enable": _Kind.SWITCH,
        "use_tf32": _Kind.SWITCH,
    },
    Device.TENSORRT: {
        "trt_auxiliary_streams": _Kind.NUMBER,
        "trt_build_heuristics_enable": _Kind.SWITCH,
        "trt_builder_optimization_level": _Kind.NUMBER,
        "trt_context_memory_sharing_enable": _Kind.SWITCH,
        "trt_dla_core": _Kind.NUMBER,
        "trt_dla_enable": _Kind.SWITCH,
        "trt_engine_cache_enable": _Kind.SWITCH,
        "trt_engine_cache_path": _Kind.TEXT,
        "trt_engine_hw_compatible": _Kind.SWITCH,
        "trt_force_sequential_engine_build": _Kind.SWITCH,
        "trt_fp16_enable": _Kind.SWITCH,
        "trt_layer_norm_fp32_fallback": _Kind.SWITCH,
        "trt_max_workspace_size": _Kind.NUMBER,
        "trt_min_subgraph_size": _Kind.NUMBER,
        "trt_op_types_to_exclude": _Kind.TEXT,
        "trt_profile_max_shapes": _Kind.TEXT,
        "trt_profile_min_shapes": _Kind.TEXT,
        "trt_profile_opt_shapes": _Kind.TEXT,
        "trt_sparsity_enable": _Kind.SWITCH,
        "trt_timing_cache_enable": _Kind.SWITCH,
        "trt_timing_cache_path": _Kind.TEXT,
    },
    Device.OPENVINO: {
        "device_type": _Kind.TEXT,
        "num_of_threads": _Kind.NUMBER,
        "num_streams": _Kind.NUMBER,
        "cache_dir": _Kind.TEXT,
        "disable_dynamic_shapes": _Kind.SWITCH,
    },
}
"""The documented options. The number of the card is part of the device, and addresses of memory are for C programs."""
_CARDS = (Device.CUDA, Device.TENSORRT)
_SWITCHES = {"0": False, "false": False, "1": True, "true": True}


@dataclass(frozen=True)
class Choice:
    """A device, its number and the options of its provider."""

    device: Device
    card: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def of_provider(self, provider: str) -> dict[str, str]:
        """The options of an execution provider, with the defaults.

        TF32 rounds products to 10 bits. It is off, so that a card gives the answers that were published.
        """
        if provider == "CUDAExecutionProvider":
            own = {name: value for name, value in self.options.items() if name in _OPTIONS[Device.CUDA]}
            return {"device_id": str(self.card), "use_tf32": "0"} | own
        if provider == "TensorrtExecutionProvider":
            own = {name: value for name, value in self.options.items() if name in _OPTIONS[Device.TENSORRT]}
            cached = {"trt_engine_cache_enable": "True"} if "trt_engine_cache_path" in own else {}
            return {"device_id": str(self.card)} | cached | own
        return dict(self.options) if provider == "OpenVINOExecutionProvider" else {}

    @property
    def captures(self) -> bool:
        """Whether calls of one shape are captured as a CUDA graph."""
        return self.options.get("enable_cuda_graph") == "1"


def parse(text: str) -> Choice:
    """Parse `DEVICE`, `DEVICE:NUMBER` or `DEVICE,OPTION=VALUE,...`."""
    named, *pairs = re.split(r",(?=\w+=)", str(text))  # values such as shapes have commas, too
    name, colon, number = named.partition(":")
    if name not in list(Device):
        remedy = f"Use: {argument('device', 'auto')}"
        raise UsageError(expected("`device`", f"one of {', '.join(Device)}", text, remedy))
    device = Device(name)
    if colon and (device not in _CARDS or not number.isdecimal()):
        rule = f"{' or '.join(_CARDS)} where it has the number of a card"
        raise UsageError(expected("`device`", rule, text, f"Use: {argument('device', 'cuda:1')}"))
    return Choice(device, int(number or 0), dict(_option(device, pair) for pair in pairs))


def with_options(device: str, options: Sequence[str]) -> str:
    """Add options of the form KEY=VALUE to the text of a device, checked."""
    named = parse(device).device
    for pair in options:
        _option(named, pair)
    return ",".join([str(device), *options])


def _option(device: Device, pair: str) -> tuple[str, str]:
    """The name and the value of an option, as ONNX Runtime takes it."""
    # What TensorRT does not take runs on CUDA.
    owners = (Device.TENSORRT, Device.CUDA) if device is Device.TENSORRT else (device,)
    known = {name: kind for owner in owners for name, kind in _OPTIONS.get(owner, {}).items()}
    name, _, value = pair.partition("=")
    if not known:
        raise UsageError(
            expected(
                "`provider_option`", f"left out for {device}", pair, f"Name the device: {argument('device', 'cuda')}"
            )
        )
    if name not in known:
        rule = f"KEY=VALUE with a key of {device}"
        remedy = "The number of a card is part of the device: cuda:1" if name == "device_id" else "Use one of: "
        remedy += "" if name == "device_id" else ", ".join(sorted(known))
        raise UsageError(expected("`provider_option`", rule, pair, remedy))
    kind = known[name]
    switch = _SWITCHES.get(value.lower())
    if not value or (kind is _Kind.NUMBER and not value.isdecimal()) or (kind is _Kind.SWITCH and switch is None):
        raise UsageError(
            expected("`provider_option`", f"{name}=VALUE with {kind.value}", pair, f"For example: {name}=1")
        )
    if kind is _Kind.SWITCH:
        value = str(switch) if name.startswith("trt_") else str(int(bool(switch)))
    return name, value
