"""The node: sensor_msgs/Image in; vision_msgs/Classification, uncertainty, novelty, reason and decision out.

ros2 run uce_edge_ros uce_edge_node --ros-args -p model:=photos.onnx -r image:=/camera/image_raw
"""

import json
import os
import sys
import warnings
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before anything here imports onnxruntime, which reads it once

import rclpy
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.executors import ExternalShutdownException
from rclpy.logging import get_logger
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import Float32, String
from vision_msgs.msg import Classification, ObjectHypothesis

from uce_edge import Model
from uce_edge.errors import UceEdgeError
from uce_edge.models import DEFAULT_NAME, find
from uce_edge_ros.classifier import Classifier


class UceEdgeNode(Node):
    """Answers every image it gets, and drops those that arrive while it is busy."""

    def __init__(self) -> None:
        super().__init__("uce_edge")
        # What the library warns of, such as other passes than the calibrated ones, belongs in the log.
        warnings.showwarning = lambda message, *_: self.get_logger().warning(str(message))
        model = Model(find(self._parameter("model", DEFAULT_NAME)), self._parameter("device", "auto"))
        self._classifier = Classifier(
            model,
            self._parameter("samples", model.metadata.samples),
            self._parameter("seed", 0),
            # A number or the word auto.
            self._parameter("reject", "auto", ParameterDescriptor(dynamic_typing=True)),
        )
        self._classification = self._publisher(Classification, "classification")
        self._uncertainty = self._publisher(Float32, "uncertainty")
        # A file without novelty has no topic that would stay silent.
        names = [name for name in ("novelty", "novelty_score") if name in model.metadata.outputs]
        self._optional = {name: self._publisher(Float32, name) for name in names}
        self._set = self._publisher(String, "set") if model.metadata.sets is not None else None
        self._reason = self._publisher(String, "reason")
        self._decision = self._publisher(String, "decision")
        # Only the newest image matters, and best effort understands every camera driver.
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(Image, self._parameter("image_topic", "image"), self.on_image, newest)
        self.get_logger().info(f"{model.path} on {model.provider}: {len(model.classes)} classes")

    def on_image(self, message: Image) -> None:
        """Publish what the model says; of an image that cannot be used only the decision `error`."""
        answer = self._classifier.answer(message)
        if answer.error is not None:
            self.get_logger().error(answer.error, throttle_duration_sec=1.0)
        else:
            results = [ObjectHypothesis(class_id=name, score=score) for name, score in answer.hypotheses]
            self._classification.publish(Classification(header=message.header, results=results))
            self._uncertainty.publish(Float32(data=answer.uncertainty))
            for name, publisher in self._optional.items():
                publisher.publish(Float32(data=getattr(answer, name)))
            if self._set is not None:
                self._set.publish(String(data=json.dumps(answer.label_set)))
            if answer.reason:
                self.get_logger().info(f"{answer.decision}: {answer.why}", throttle_duration_sec=1.0)
        self._reason.publish(String(data=answer.reason))
        self._decision.publish(String(data=answer.decision))

    def _parameter(self, name: str, default: Any, *descriptor: ParameterDescriptor) -> Any:
        return self.declare_parameter(name, default, *descriptor).value

    def _publisher(self, kind: Any, name: str) -> Any:
        return self.create_publisher(kind, self._parameter(f"{name}_topic", f"~/{name}"), 10)


def main() -> None:
    """Run the node until it is interrupted; exits with 1 when it cannot start."""
    rclpy.init()
    try:
        rclpy.spin(UceEdgeNode())
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except UceEdgeError as error:
        get_logger("uce_edge").fatal(str(error))
        sys.exit(1)
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
