// The model on this device: WebGPU where there is one, WebAssembly everywhere else.

import { checkSignature, mapOutputs, optionalOutputs, passSeeds, Refusal } from "./contract.js";

/** Opens a model on the first device that runs it; `wanted` is auto, webgpu or wasm. */
export async function openEngine(model, metadata, wanted) {
  let downgrade = null;
  if (wanted !== "wasm") {
    if (await hasGpu(wanted === "webgpu")) {
      try {
        return await start(model, metadata, "webgpu");
      } catch (error) {
        if (wanted === "webgpu") throw error;
        downgrade = `WebGPU could not run this model (${error.message})`;
      }
    } else if (wanted === "webgpu") {
      throw new Refusal("This browser has no WebGPU. Choose the processor, or another browser.");
    }
  }
  const engine = await start(model, metadata, "wasm");
  engine.downgrade = downgrade;
  return engine;
}

/** Whether there is a graphics card; one that the processor only plays is slower than the processor itself. */
async function hasGpu(evenPlayed) {
  try {
    const adapter = await navigator.gpu?.requestAdapter();
    return Boolean(adapter) && (evenPlayed || !(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter));
  } catch {
    return false;
  }
}

async function start(model, metadata, device) {
  const engine = new Engine(metadata, device);
  try {
    const graph = await engine.call("open", { model, device });
    checkSignature(metadata, graph);
    engine.threads = graph.threads;
    // The first call of a session plans memory or compiles shaders: it is no measure of the others.
    const { height, width, channels } = metadata.image;
    const blank = new (engine.dtype === "uint8" ? Uint8Array : Float32Array)(height * width * channels);
    await engine.passes(blank, passSeeds(metadata.baked ? metadata.samples : 1, 0));
    return engine;
  } catch (error) {
    engine.close();
    if (error instanceof Refusal) throw error;
    throw new Refusal(
      `The model does not load (${brief(error.message)}). It may be damaged: export it again with uce-edge export, ` +
        "or reload the page.",
    );
  }
}

/** What a runtime says, in one line. */
const brief = (text) => text.split("\n")[0].replace(/[.\s]+$/, "").slice(0, 200);

class Engine {
  constructor(metadata, device) {
    this.device = device;
    this.metadata = metadata;
    this.dtype = metadata.image.dtype ?? "uint8";
    this.waiting = new Map();
    this.last = 0;
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data: { id, result, error } }) => {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      if (error === undefined) resolve(result);
      else reject(new Error(error));
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail(new Error(event.message || "its worker could not be started"));
    };
  }

  get name() {
    if (this.device === "webgpu") return "the graphics card (WebGPU)";
    return `the processor (WebAssembly, ${this.threads === 1 ? "1 thread" : `${this.threads} threads`})`;
  }

  /** The probabilities of some passes for one image, the milliseconds they took, its optional outputs and maps by name. */
  async passes(pixels, seeds) {
    const { height, width, channels } = this.metadata.image;
    const dims = [1, height, width, channels];
    // The set follows from all passes together.
    const optional = optionalOutputs(this.metadata).filter((name) => name !== "in_set");
    const maps = mapOutputs(this.metadata);
    const answer = await this.call("passes", { pixels, dims, dtype: this.dtype, seeds, optional, maps });
    const { classes, inference, members } = this.metadata;
    const count = (inference === "deterministic" ? 1 : seeds.length) * members * classes.length;
    if (answer.values.length !== count || !answer.values.every(Number.isFinite)) {
      throw new Refusal("The model gives no probabilities. It is damaged: export it again with uce-edge export.");
    }
    return answer;
  }

  call(task, values) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.last, { resolve, reject });
      this.worker.postMessage({ id: this.last, task, ...values });
    });
  }

  fail(error) {
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  close() {
    this.worker.terminate();
    this.fail(new Error("it was closed"));
  }
}
