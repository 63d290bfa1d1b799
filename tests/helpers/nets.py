"""Small third-party classifiers built node by node, and what they say by ONNX Runtime alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from uce_edge.metadata import ImageSpec
from uce_edge_export.options import Options
from uce_edge_export.pipeline import Exported, export_third_party
from uce_edge_export.source import third_party

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
IR_VERSION = 10


class Net:
    """A graph in the making: every call appends a node and gives the name of its output."""

    def __init__(self, opset: int = 18, dtype: type = np.float32) -> None:
        self.opset, self.dtype = opset, dtype
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def append(*inputs: str, outputs: int = 1, **attributes: object) -> str:
            names = [f"v{len(self.nodes)}.{i}" for i in range(outputs)]
            self.nodes.append(
                helper.make_node(op_type, inputs, names, name=f"{op_type}{len(self.nodes)}", **attributes)
            )
            return names[0]

        return append

    def constant(self, array: object, name: str | None = None) -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, name: str | None = None) -> str:
        values = self.rng.standard_normal(shape) * (2 / np.prod(shape[1:] or shape)) ** 0.5
        return self.constant(values.astype(self.dtype), name)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, group: int = 1, **attributes: object) -> str:
        if not {"pads", "auto_pad"} & set(attributes):
            attributes["pads"] = [kernel // 2] * 4
        operands = self.weight(outputs, inputs // group, kernel, kernel), self.weight(outputs)
        return self.Conv(x, *operands, group=group, **attributes)

    def norm(self, x: str, channels: int) -> str:
        scale, variance = (self.constant(self.rng.uniform(0.5, 2, channels).astype(np.float32)) for _ in range(2))
        return self.BatchNormalization(x, scale, self.weight(channels), self.weight(channels), variance, epsilon=1e-3)

    def stem(self, x: str = "image", channels: int = 3) -> str:
        return self.Relu(self.conv(x, channels, 6))

    def pool(self, x: str) -> str:
        return self.Flatten(self.GlobalAveragePool(x))

    def head(self, x: str, inputs: int = 6) -> str:
        return self.Gemm(self.pool(x), self.weight(inputs, 4), self.weight(4))

    def model(self, *outputs: str, shape: tuple = ("n", 3, 8, 8), extra: tuple[str, ...] = ()) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info(name, kind, shape) for name in ("image", *extra)]
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.initializers)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.acme", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model)
        for output in model.graph.output:
            if not output.type.tensor_type.HasField("shape"):
                output.CopyFrom(helper.make_tensor_value_info(output.name, kind, ("n", "c")))
        return model


def simple(net: Net, shape: tuple = ("n", 3, 8, 8)) -> onnx.ModelProto:
    return net.model(net.head(net.Relu(net.conv(net.stem(), 6, 6))), shape=shape)


def wide(net: Net | None = None) -> onnx.ModelProto:
    net = net or Net()
    x = net.Relu(net.Conv("image", net.weight(6, 3, 3, 3, name="stem")))  # [6, 6, 6]
    x = net.Relu(net.Conv(x, net.weight(8, 6, 3, 3, name="body.0"), strides=[2, 2]))  # [8, 2, 2]
    x = net.Relu(net.Conv(x, net.weight(8, 2, 1, 1, name="body.1"), group=4))
    return net.model(net.Gemm(net.Flatten(x), net.weight(4, 32, name="head"), transB=1))


def truth(proto: onnx.ModelProto, images: np.ndarray, spec: ImageSpec, nhwc: bool = False) -> np.ndarray:
    """What the original says of images, by ONNX Runtime alone."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    pixels = (images / spec.scale - np.array(spec.mean)) / np.array(spec.std)
    pixels = (pixels if nhwc else pixels.transpose(0, 3, 1, 2)).astype("f2" if "16" in given.type else "f4")
    return np.stack([np.ravel(session.run(None, {given.name: one[None]})[0]) for one in pixels]).astype(np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def export(
    proto: onnx.ModelProto, folder: Path, p: tuple[str, ...] = ("0.2",), options: Options = Options(), **how: object
) -> tuple[third_party.ThirdParty, Exported]:
    source = folder / "source" / "net.onnx"
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(proto.SerializeToString())
    found = third_party.load(
        source, options=options, **{key: how.pop(key) for key in ("layout", "output_is", "size") if key in how}
    )
    colour = {"mean": MEAN, "std": STD} if found.channels == 3 else {"mean": (0.5,), "std": (0.25,)}
    metadata = third_party.metadata(found, source, **(colour | how))
    return found, export_third_party(found, metadata, folder / "out" / "m.onnx", list(p), options)
