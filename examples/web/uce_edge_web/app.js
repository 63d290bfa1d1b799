// The page: an image comes in, passes are drawn, the answer is shown.

import { Camera } from "./camera.js";
import { decide, Refusal } from "./contract.js";
import { Controls } from "./controls.js";
import { openEngine } from "./engine.js";
import { fetchModel } from "./model.js";
import { decode, fit, noise, paint, raw } from "./pixels.js";
import { draw } from "./run.js";
import { asDocument, fillTable, hideAnswer, showAnswer, speak } from "./view.js";

const MOST_EARLIER = 60;
const element = (id) => document.getElementById(id);
const state = { model: null, engine: null, camera: null, source: null, pixels: null, answer: null, earlier: [], run: 0, spoken: "" };

const controls = new Controls({
  onPasses: () => attempt(run),
  onThreshold: () => attempt(judge),
  onThresholdSettled: () => attempt(settle),
  onDevice: () => attempt(openDevice),
});

/** Does something, and says in one sentence why it could not be done. */
async function attempt(action) {
  try {
    element("refusal").hidden = true;
    await action();
  } catch (error) {
    if (!(error instanceof Refusal)) console.error(error);
    element("refusal").textContent =
      error instanceof Refusal ? error.message : `Something went wrong (${error.message}). Reload the page.`;
    element("refusal").hidden = false;
  }
}

async function start() {
  try {
    state.model = await fetchModel();
    controls.use(state.model.metadata);
    state.camera = new Camera(element("video"), state.model.metadata.image);
    element("video").style.aspectRatio = state.camera.aspect;
    await openDevice();
  } catch (error) {
    element("about").textContent = "No model is running.";
    document.body.dataset.state = "failed";
    throw error;
  }
}

/** Opens the model on the device that is chosen, and asks it again. */
async function openDevice() {
  const { metadata, bytes } = state.model;
  state.run++;
  controls.enable(false);
  document.body.dataset.state = "loading";
  element("about").textContent = "Loading the model.";
  state.engine?.close();
  state.engine = null;
  try {
    state.engine = await openEngine(bytes, metadata, controls.device);
  } catch (error) {
    element("about").textContent = "No model is running.";
    element("device").disabled = false; // another one may do
    throw error;
  }
  const { classes, image, architecture, inference } = metadata;
  const size = `${image.height} × ${image.width} ${image.channels === 1 ? "gray" : "RGB"}`;
  const network = architecture ? `${architecture}, ` : "";
  const downgrade = state.engine.downgrade ? ` ${state.engine.downgrade}.` : "";
  element("about").textContent = `Model: ${network}${classes.length} classes, ${size}. Runs on ${state.engine.name}.${downgrade}`;
  document.body.dataset.inference = inference;
  document.body.dataset.device = state.engine.device;
  document.body.dataset.state = "ready";
  state.earlier = [];
  controls.enable(true);
  if (state.pixels) await run();
}

/** Draws the passes of the current image and shows them as they come. */
async function run() {
  controls.describe();
  const seeds = controls.seeds();
  const rule = controls.rule();
  if (!state.pixels || !state.engine) return;
  const mine = ++state.run;
  const { source } = state;
  element("save").removeAttribute("href");
  try {
    for await (const answer of draw(state.engine, state.pixels, seeds, controls.seed)) {
      if (mine !== state.run) return;
      state.answer = { ...answer, source };
      showAnswer(state.answer, controls.validRule ?? rule, state.earlier);
      await nextFrame();
      if (mine !== state.run) return;
    }
  } catch (error) {
    if (mine !== state.run) return; // its engine was closed for another one
    state.answer = null;
    hideAnswer(); // it would stand beside an image that it is not about
    throw error;
  }
  finish();
}

function finish() {
  const { answer } = state;
  state.earlier = [...state.earlier, answer.steps.at(-1)].slice(-MOST_EARLIER);
  settle();
}

/** Everything that need not follow a slider while it moves. */
function settle() {
  const rule = controls.rule();
  const { answer } = state;
  if (!answer?.complete) return;
  // A camera that runs all the time is spoken of only when the outcome changes.
  const outcome = `${answer.summary.classId} ${decide(rule, answer.summary)}`;
  if (!element("live").checked || outcome !== state.spoken) speak(answer, rule);
  state.spoken = outcome;
  URL.revokeObjectURL(element("save").href);
  const text = JSON.stringify(asDocument(answer, rule));
  element("save").href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  if (element("record").open) fillTable(answer);
}

/** Applies the rule to the passes that are there. */
function judge() {
  controls.describe();
  const rule = controls.rule();
  if (state.answer) showAnswer(state.answer, rule, earlierOf(state.answer));
}

/** The runs before this one. */
const earlierOf = (answer) => state.earlier.filter((step) => step !== answer.steps.at(-1));

/** The next frame, or soon: a hidden page has no frames. */
const nextFrame = () => new Promise((resolve) => {
  requestAnimationFrame(() => setTimeout(resolve));
  setTimeout(resolve, 100);
});

async function takeFile(file) {
  if (!file || !state.engine) return;
  const { image } = state.model.metadata;
  if (file.name.endsWith(".raw")) {
    take(raw(await file.arrayBuffer(), image, file.name), null, file.name);
  } else {
    await takeBitmap(await decode(file, image), file.name);
  }
  closeCamera();
  await run();
}

async function takeBitmap(bitmap, source) {
  try {
    take(fit(bitmap, state.model.metadata.image), bitmap, source);
  } finally {
    bitmap.close();
  }
}

/** Makes these pixels the question; `bitmap` is what they were made of, `source` its name. */
function take(pixels, bitmap, source) {
  const { image } = state.model.metadata;
  controls.seeds(); // wrong settings are told while image and answer still belong together
  controls.rule();
  state.pixels = pixels;
  state.source = source;
  paint(element("seen"), pixels, image);
  element("seen-caption").textContent = `what the model sees, ${image.height} × ${image.width}`;
  element("seen-view").hidden = false;
  element("given-view").hidden = bitmap === null || state.camera.isOpen;
  if (bitmap && !state.camera.isOpen) {
    const given = element("given");
    const scale = Math.min(1, 480 / Math.max(bitmap.width, bitmap.height));
    given.width = Math.max(1, Math.round(bitmap.width * scale));
    given.height = Math.max(1, Math.round(bitmap.height * scale));
    given.getContext("2d").drawImage(bitmap, 0, 0, given.width, given.height);
    given.classList.toggle("pixels", Math.max(bitmap.width, bitmap.height) < 120);
  }
  element("hint").textContent = "Drop another image here, or";
}

async function toggleCamera() {
  if (state.camera.isOpen) {
    closeCamera();
    return;
  }
  await state.camera.open();
  showCamera(true);
}

function closeCamera() {
  if (!state.camera.isOpen) return;
  state.camera.close();
  element("live").checked = false;
  showCamera(false);
}

function showCamera(open) {
  element("camera").textContent = open ? "Close the camera" : "Use the camera";
  element("camera").ariaExpanded = String(open);
  element("camera-view").hidden = !open;
  element("camera-controls").hidden = !open;
  if (open) element("given-view").hidden = true;
}

async function shoot() {
  await takeBitmap(await state.camera.grab(), "camera");
  await run();
}

/** Classifies frame after frame until the box is cleared or the camera closed. */
async function live() {
  try {
    while (element("live").checked && state.camera.isOpen && state.engine) await shoot();
  } catch (error) {
    if (state.camera.isOpen) throw error; // closed between two frames
  } finally {
    element("live").checked = false;
  }
}

function dragging(event) {
  event.preventDefault();
  element("drop").classList.add("over");
}

element("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  attempt(() => takeFile(file)).then(() => (event.target.value = "")); // so that the same file can be chosen again
});
element("camera").addEventListener("click", () => attempt(toggleCamera));
element("shoot").addEventListener("click", () => attempt(shoot));
element("live").addEventListener("change", () => attempt(live));
element("noise").addEventListener("click", () =>
  attempt(async () => {
    closeCamera();
    take(noise(state.model.metadata.image), null, "noise");
    await run();
  }),
);
element("record").addEventListener("toggle", () => {
  if (element("record").open && state.answer?.complete) fillTable(state.answer);
});
for (const name of ["dragenter", "dragover"]) window.addEventListener(name, dragging);
for (const name of ["dragleave", "drop"]) window.addEventListener(name, () => element("drop").classList.remove("over"));
window.addEventListener("drop", (event) => {
  event.preventDefault();
  attempt(async () => {
    const [file] = event.dataTransfer.files;
    if (!file) throw new Refusal("What was dropped is no file. Save the image first, and drop the file.");
    await takeFile(file);
  });
});
window.addEventListener("paste", (event) => {
  const [file] = event.clipboardData.files;
  if (file) attempt(() => takeFile(file));
});
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width === width) return; // charts are drawn for a width, and answers change the height
  width = contentRect.width;
  const rule = state.answer && controls.validRule;
  if (rule) showAnswer(state.answer, rule, earlierOf(state.answer));
}).observe(element("answer"));

attempt(start);
