"""Reading third-party ONNX classifiers."""
