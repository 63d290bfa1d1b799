// Fetches the two files of a model, and makes sure that they came as they were sent.

import { readMetadata, Refusal } from "./contract.js";

export async function fetchModel() {
  const metadata = readMetadata(await (await get("model.json")).text());
  const answer = await get("model.onnx");
  const bytes = await answer.arrayBuffer().catch(() => {
    throw new Refusal("model.onnx did not arrive whole. Reload the page.");
  });
  const sent = answer.headers.get("Repr-Digest")?.match(/sha-256=:([^:]+):/)?.[1];
  if (sent && globalThis.crypto?.subtle && sent !== (await sha256(bytes))) {
    throw new Refusal("model.onnx is corrupted: its checksum is not the one the server tells. Reload the page.");
  }
  return { metadata, bytes };
}

async function get(name) {
  let answer;
  try {
    answer = await fetch(name, { cache: "no-cache" });
  } catch {
    throw new Refusal(`${name} cannot be fetched: the server does not answer. Start it again: uce-edge web --model FILE`);
  }
  if (!answer.ok) {
    throw new Refusal(`The server has no ${name} (${answer.status}). Start it with: uce-edge web --model FILE`);
  }
  return answer;
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return btoa(String.fromCharCode(...digest));
}
