// The camera of the device: a preview, and frames in the shape of the model's image.

import { Refusal } from "./contract.js";

export class Camera {
  constructor(video, { width, height }) {
    this.video = video;
    this.aspect = width / height;
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

  /** The middle of the current frame, as the preview shows it. */
  async grab() {
    const { videoWidth: width, videoHeight: height } = this.video;
    const wide = Math.min(width, Math.round(height * this.aspect));
    const high = Math.min(height, Math.round(width / this.aspect));
    return createImageBitmap(this.video, Math.floor((width - wide) / 2), Math.floor((height - high) / 2), wide, high);
  }
}
