// Keeps ONNX Runtime from writing a device id to disk and reporting, unless the user has decided by the variable.
process.env.ORT_DISABLE_TELEMETRY ??= '1';
