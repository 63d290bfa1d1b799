// Runs the model beside the page, so that the page never stands still. One message in, one message out, in order.

let ort;
let session;
let queue = Promise.resolve();

self.onmessage = ({ data: { id, task, ...values } }) => {
  queue = queue.then(async () => {
    try {
      const { result, transfer = [] } = await tasks[task](values);
      self.postMessage({ id, result }, transfer);
    } catch (error) {
      self.postMessage({ id, error: String(error?.message ?? error) });
    }
  });
};

const tasks = {
  /** Loads onnxruntime-web for a device and opens the model with it. */
  async open({ model, device }) {
    const build = device === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
    ort = await import(`./vendor/${build}`);
    const threads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
    ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
    ort.env.wasm.numThreads = threads;
    ort.env.logLevel = "error";
    session = await ort.InferenceSession.create(new Uint8Array(model), {
      executionProviders: [device],
      graphOptimizationLevel: "all",
      logSeverityLevel: 3,
    });
    return { result: { inputs: [...session.inputNames], outputs: [...session.outputNames], shape: shape(), threads } };
  },

  /** The calibrated probabilities of some passes, [samples, classes], the time they took, and other outputs of an image. */
  async passes({ pixels, dims, dtype, seeds, optional, maps: named }) {
    const feed = { image: new ort.Tensor(dtype, pixels, dims) };
    if (session.inputNames.includes("seeds")) feed.seeds = new ort.Tensor("int32", seeds, [seeds.length]);
    const started = performance.now();
    const { pass_probabilities: passes, ...others } = await session.run(feed, ["pass_probabilities", ...optional, ...named]);
    const values = Float32Array.from(await passes.getData());
    const milliseconds = performance.now() - started;
    passes.dispose();
    const numbers = {};
    const maps = {};
    for (const [name, tensor] of Object.entries(others)) {
      const data = await tensor.getData();
      if (named.includes(name)) maps[name] = { values: Float32Array.from(data), height: tensor.dims[1], width: tensor.dims[2] };
      else [numbers[name]] = data;
      tensor.dispose();
    }
    return { result: { values, milliseconds, numbers, maps }, transfer: [values.buffer] };
  },
};

/** Image type, height, width, channels and the number of classes, as the graph has them. */
function shape() {
  const image = session.inputMetadata?.find((value) => value.name === "image");
  const table = session.outputMetadata?.find((value) => value.name === "probabilities");
  return image?.isTensor && table?.isTensor ? [image.type, ...image.shape.slice(1), table.shape.at(-1)] : null;
}
