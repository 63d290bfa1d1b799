// The camera of the device: a preview, and frames for the model.

import { Refusal } from "./contract.js";

export class Camera {
  constructor(video, { width, height, resize }) {
    this.video = video;
    // A model that stretches would distort a frame of another shape; the others keep the shape themselves.
    this.aspect = (resize?.mode ?? "stretch") === "stretch" ? width / height : null;
    video.classList.toggle("whole", resize?.mode === "pad");
    this.stream = null;
  }

  get isOpen() {
    return this.stream !== null;
  }

  async open() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Refusal("This page has no camera here. Browsers give one to https and to this computer's own pages only.");
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ audio: false, video: { facingMode: "environment" } });
    } catch (error) {
      const why = { NotAllowedError: "it was not allowed", NotFoundError: "there is none" }[error.name] ?? error.message;
      throw new Refusal(`The camera cannot be used: ${why}. Allow it in the browser's settings, or choose a file.`);
    }
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
    this.video.srcObject = null;
  }

  /** The current frame; for a model that stretches, its middle, as the preview shows it. */
  async grab() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (this.aspect === null) return createImageBitmap(this.video);
    const wide = Math.min(width, Math.round(height * this.aspect));
    const high = Math.min(height, Math.round(width / this.aspect));
    return createImageBitmap(this.video, Math.floor((width - wide) / 2), Math.floor((height - high) / 2), wide, high);
  }
}
