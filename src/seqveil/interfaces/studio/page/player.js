// Playback: a moment that moves, and whoever draws it.

import { $ } from "./dom.js";

export class Player {
  constructor(moved) {
    this.moved = moved;
    this.playing = false;
    this.count = 1;
    $("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    $("time").addEventListener("input", () => {
      this.pause();
      this.go(Number($("time").value));
    });
  }

  get at() {
    return Number($("time").value);
  }

  // how many events there are; stays at the end where it was there
  reach(count) {
    const atEnd = this.at >= this.count - 1;
    this.count = count;
    $("time").max = String(count - 1);
    this.go(atEnd && !this.playing ? count - 1 : Math.min(this.at, count - 1));
  }

  go(event) {
    $("time").value = String(event);
    this.moved(event);
  }

  play() {
    if (this.at >= this.count - 1) this.go(0);
    this.playing = true;
    this.show();
    let [last, owed] = [performance.now(), 0];
    const frame = (now) => {
      if (!this.playing) return;
      owed += ((now - last) / 1000) * Number($("speed").value);
      last = now;
      const whole = Math.floor(owed);
      owed -= whole;
      if (whole > 0) this.go(Math.min(this.count - 1, this.at + whole));
      if (this.at >= this.count - 1) this.pause();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.playing = false;
    this.show();
  }

  show() {
    $("play").textContent = this.playing ? "Pause" : "Play";
    $("play").setAttribute("aria-pressed", String(this.playing));
  }
}
