#!/usr/bin/env node
// Classifies one raw image with a uce-edge model file and prints the answer as JSON.
import { readFileSync, statSync } from 'node:fs';
import { check, isUncertain, MAX_SAMPLES, MAX_SEED, Model, REASONS, UceEdgeError } from './uce_edge.mjs';

const USAGE = 'Usage: node index.mjs MODEL.onnx IMAGE.raw [--frame WIDTHxHEIGHT] [--samples N] [--seed S] [--reject THRESHOLD|auto], or node index.mjs MODEL.onnx --self-test';
const HELP = `${USAGE}

Classifies one raw image and prints the answer as JSON.

  IMAGE.raw     height x width x channels bytes, rows from the top, not normalised
  --frame WxH   the image is a frame of this size, gray or RGB: resize it as the file asks
  --samples N   the number of passes, 1 to 4096; by default what the file says
  --seed S      which passes: S owns 4096*S to 4096*S+4095; by default 0
  --reject T    reject an uncertainty above T, or with auto apply the rule of the file
  --self-test   answer the probe images in the file, and compare with the answers it was published with

Exit codes: 0 done, 1 failed, 2 wrong usage.`;
const DECIMAL = /^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

async function selfTest(path) {
  const found = await (await Model.load(path)).selfTest();
  if (!found) throw new UceEdgeError(`${path} has no probe images: it was published before there were any.`);
  const { images, difference, passed } = found;
  if (!passed) throw new UceEdgeError(`${path} answers its own probe images otherwise than when it was published: by ${difference}.`);
  console.log(JSON.stringify({ images, difference }));
}

/** The pixels that the model takes, of a frame of WIDTHxHEIGHT with as many channels as its bytes make up. */
function prepared(model, size, data) {
  const sides = /^([1-9]\d{0,8})x([1-9]\d{0,8})$/.exec(size);
  if (!sides) throw new UceEdgeError(`Expected \`frame\` to be a width and a height such as 640x480, but got ${size}.`, 2);
  const [width, height] = sides.slice(1).map(Number);
  const area = width * height;
  if (![area, 3 * area].includes(data.length)) {
    throw new UceEdgeError(`Expected \`image\` to be ${area} bytes (gray) or ${3 * area} bytes (RGB), but got ${data.length}.`, 2);
  }
  return model.prepare({ data, width, height, channels: data.length / area });
}

async function main(words) {
  if (words.some((word) => ['--help', '-h'].includes(word))) return console.log(HELP);
  if (words.length === 2 && words[1] === '--self-test') return selfTest(words[0]);
  const files = [];
  const given = {};
  for (let i = 0; i < words.length; i++) {
    if (!['--frame', '--samples', '--seed', '--reject'].includes(words[i])) files.push(words[i]);
    else if (i + 1 < words.length) given[words[i].slice(2)] = words[++i];
    else throw new UceEdgeError(USAGE, 2);
  }
  if (files.length !== 2) throw new UceEdgeError(USAGE, 2);
  const asked = 'samples' in given ? check('samples', given.samples, 1, MAX_SAMPLES) : undefined;
  const seed = check('seed', given.seed ?? '0', 0, MAX_SEED);
  const auto = given.reject === 'auto';
  const threshold = 'reject' in given && !auto ? check('reject', given.reject, 0, 1, 'between 0 and 1, or auto', DECIMAL) : null;

  const model = await Model.load(files[0]);
  const seeds = model.seeds(asked, seed);
  const samples = seeds.length;
  if (auto) {
    const rule = model.about.rule ?? null;
    if (!rule) throw new UceEdgeError(`${files[0]} has no stored reject rule: give a threshold, such as --reject 0.3.`, 2);
    if (rule.promise && (rule.promise.samples !== samples || rule.promise.seed !== seed)) {
      console.error('warning: the promise about the error holds for other passes than these.');
    }
  }
  const { sets } = model.about;
  if (sets && (sets.samples !== samples || sets.seed !== seed)) {
    console.error('warning: the promise of the prediction sets holds for other passes than these.');
  }
  const fitted = model.about.calibration?.samples ?? samples;
  if (fitted !== samples) {
    const now = `this model was calibrated at ${fitted} samples and runs with ${samples}`;
    console.error(`warning: ${now}: its probabilities are a little off.`);
  }
  const isFile = statSync(files[1], { throwIfNoEntry: false })?.isFile();
  if (!isFile) throw new UceEdgeError(`There is no image file ${files[1]}.`);
  const bytes = readFileSync(files[1]);
  const answer = await model.predict('frame' in given ? prepared(model, given.frame, bytes) : bytes, seeds);
  const code = auto ? answer.decision : Number(threshold !== null && isUncertain(answer.uncertainty, threshold));
  const decision = 'reject' in given ? (code === 0 ? 'accept' : 'reject') : null;
  console.log(JSON.stringify({ ...answer, decision, reason: REASONS[code], samples, seed }));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = error.code === 2 ? 2 : 1;
});
