"""Turn a trained classifier into one ONNX file that knows when it does not know."""
