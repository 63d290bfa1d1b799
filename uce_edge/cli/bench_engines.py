"""The engines of `uce-edge bench --compare`, with the modules of their workers."""

from uce_edge.bench.engine import Engine

_INSTALL = 'pip install "uce-edge[train,export]"'

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("pytorch", "All passes as one batch.", ("torch",), _INSTALL,
               worker="uce_edge_train.bench.pytorch_worker"),
        Engine("pytorch-loop", "One pass after another.", ("torch",), _INSTALL,
               worker="uce_edge_train.bench.pytorch_worker"),
        Engine(
            "naive", "The same graph with the runtime's own random numbers.", ("torch", "onnxscript"), _INSTALL,
            maker="uce_edge_train.bench.runtime_noise",
        ),
        Engine(
            "openvino", "The same file in OpenVINO.", ("openvino",), "pip install openvino",
            worker="uce_edge.bench.openvino_worker",
        ),
    )
}  # fmt: skip
"""By name."""
