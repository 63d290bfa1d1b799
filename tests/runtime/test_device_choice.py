"""The text that names a device, its card and the options of its provider."""

import pytest

from tests.helpers.errors import raises
from uce_edge.runtime import device_choice
from uce_edge.runtime.device_choice import Device

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"


def test_a_device_has_a_card_and_tf32_is_off() -> None:
    choice = device_choice.parse("cuda:1")
    assert (choice.device, choice.card) == (Device.CUDA, 1)
    assert choice.of_provider(CUDA) == {"device_id": "1", "use_tf32": "0"}
    assert choice.of_provider("CPUExecutionProvider") == {}
    assert not choice.captures


def test_options_reach_the_provider_that_has_them() -> None:
    text = "tensorrt:2,trt_engine_cache_path=/var/cache/a,trt_fp16_enable=true,gpu_mem_limit=2000000000,use_tf32=1"
    choice = device_choice.parse(text)
    assert choice.of_provider(TENSORRT) == {
        "device_id": "2",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/var/cache/a",
        "trt_fp16_enable": "True",
    }
    assert choice.of_provider(CUDA) == {"device_id": "2", "use_tf32": "1", "gpu_mem_limit": "2000000000"}


def test_a_value_may_have_commas() -> None:
    shapes = "image:1x224x224x3,seeds:25"
    choice = device_choice.parse(f"tensorrt,trt_profile_opt_shapes={shapes},trt_dla_core=1")
    assert choice.options == {"trt_profile_opt_shapes": shapes, "trt_dla_core": "1"}


def test_options_are_added_to_the_text_and_checked() -> None:
    text = device_choice.with_options("cuda:1", ["enable_cuda_graph=1", "gpu_mem_limit=1000"])
    assert device_choice.parse(text).options == {"enable_cuda_graph": "1", "gpu_mem_limit": "1000"}
    assert device_choice.parse(text).captures
    assert device_choice.with_options(Device.AUTO, []) == "auto"


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cpu:0", "openvino:1", "auto:1"])
def test_a_device_that_does_not_exist_is_refused(text: str) -> None:
    with raises("argument.device"):
        device_choice.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "cpu,use_tf32=1",
        "auto,use_tf32=1",
        "cuda,device_id=1",
        "cuda,trt_fp16_enable=1",
        "cuda,user_compute_stream=1",
        "cuda,use_tf32=maybe",
        "cuda,gpu_mem_limit=2GB",
        "tensorrt,trt_engine_cache_path=",
    ],
)
def test_an_option_that_means_nothing_is_refused(text: str) -> None:
    with raises("argument.provider_option"):
        device_choice.parse(text)
