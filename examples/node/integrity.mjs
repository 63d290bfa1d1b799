// Whether a model file is the one that its description was written for (docs/contract.md, "Digests").
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { refuse } from './contract.mjs';

const METADATA_PROPS = 14;
const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest('hex');

/** Refuses a description that was edited, and one that belongs to another file. Older ones have no digests. */
export function checkDigests(model, path, text, about) {
  const digests = about.digests ?? null;
  if (digests === null) return;
  if (typeof digests.graph !== 'string' || typeof digests.metadata !== 'string') {
    refuse(`${path} has damaged metadata: its key digests has the wrong type.`);
  }
  // The digest is left out once, in its own place: a text that holds it in a second place does not match.
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[^ \t\r\n"]+/g).join('');
  if (sha256(tokens.replace(digests.metadata, '')) !== digests.metadata) {
    refuse(`${path} was changed after it was published.`);
  }
  const { parts, document } = opened(readFileSync(model));
  if (sha256(...parts) !== digests.graph || document === null || essence(JSON.parse(document)) !== essence(about)) {
    refuse(`${model} is not the file that ${path} describes: it was changed, or belongs to another export.`);
  }
}

/** A document but for its digests: beside a file in ONNX Runtime's own format, the description has one more. */
function essence(document) {
  return JSON.stringify({ ...document, digests: null });
}

/** The bytes of an ONNX file but for the document in its metadata, and that document; for another file, null. */
function opened(bytes) {
  const parts = [];
  let document = null;
  try {
    for (const { number, raw, content } of fields(bytes)) {
      const entry = number === METADATA_PROPS ? texts(content) : {};
      if (entry[1] !== 'uce_edge') parts.push(raw);
      else if (document !== null) throw new RangeError('it has its metadata twice');
      else document = entry[2] ?? '';
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    document = null;
  }
  return { parts, document };
}

/** The key (1) and the value (2) of an entry of the metadata. */
function texts(message) {
  const found = {};
  for (const { number, kind, content } of fields(message)) {
    if (kind !== 2 || number > 2 || number in found) throw new RangeError('an entry that ONNX does not know');
    found[number] = content.toString();
  }
  return found;
}

/** The fields of a protobuf message; one in a form that parsers may read differently is refused. */
function* fields(message) {
  const varint = (at) => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      if (at >= message.length || factor > 2 ** 63) throw new RangeError('a number does not end');
      const byte = message[at++];
      value += (byte & 127) * factor;
      if (byte === 0 && factor > 1) throw new RangeError('a number is longer than it must be');
      if (byte < 128) return [value, at];
    }
  };
  for (let at = 0; at < message.length;) {
    const start = at;
    let [tag, length] = [0, 0];
    [tag, at] = varint(at);
    const [kind, number] = [tag % 8, Math.floor(tag / 8)];
    if (tag >= 2 ** 32 || number === 0) throw new RangeError('a tag that protobuf does not know');
    if (number === METADATA_PROPS && kind !== 2) throw new RangeError('an entry that is no message');
    if (kind === 2) [length, at] = varint(at);
    else if (kind === 0) [, at] = varint(at);
    else if (kind === 1 || kind === 5) at += kind === 1 ? 8 : 4;
    else throw new RangeError('a type that ONNX does not use');
    const end = at + length;
    if (end > message.length) throw new RangeError('it ends in the middle of a field');
    yield { number, kind, raw: message.subarray(start, end), content: message.subarray(at, end) };
    at = end;
  }
}
