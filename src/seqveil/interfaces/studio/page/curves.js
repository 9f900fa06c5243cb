// Curves arrive after the picture, one mechanism after another, and wait while somebody moves a slider.

import { Refused, ask } from "./api.js";
import { FEW, keyOf } from "./curve.js";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export class Curves {
  constructor(busy, changed) {
    this.busy = busy;
    this.changed = changed;
    this.kept = new Map(); // source and cost → key of a curve → curve
    this.working = false;
    this.progress = "";
    this.complete = false;
  }

  found(asked) {
    const all = this.#of(asked);
    const wanted = new Set([keyOf(asked), ...(this.list ?? []).map((name) => keyOf({ mechanism: name, batch: 1, every: 1 }))]);
    return new Map([...all].filter(([key]) => wanted.has(key)));
  }

  #of(asked) {
    const key = `${asked.source} ${asked.distortion}`;
    if (!this.kept.has(key)) this.kept.set(key, new Map());
    return this.kept.get(key);
  }

  async want(asked, picture, all) {
    if (!asked || !picture) return;
    this.asked = asked;
    this.list = all ? picture.curves : picture.curves.filter((name) => FEW.includes(name));
    this.complete = false;
    this.changed();
    if (this.working) return;
    this.working = true;
    try {
      while (await this.#next());
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem; // the next picture says what is wrong
    } finally {
      this.working = false;
    }
  }

  async #next() {
    const { source, distortion, mechanism, batch, every } = this.asked;
    const all = this.#of(this.asked);
    const todo = [{ mechanism, batch, every }, ...this.list.map((name) => ({ mechanism: name, batch: 1, every: 1 }))];
    const open = todo.filter((each) => !all.get(keyOf(each))?.complete);
    const total = new Set(todo.map(keyOf)).size;
    this.progress = open.length ? `${total - new Set(open.map(keyOf)).size} of ${total} mechanisms` : "";
    this.complete = !open.length;
    if (this.complete) {
      this.changed();
      return false;
    }
    if (this.busy()) {
      await pause(60);
      return true;
    }
    const made = await ask("/v1/page/curve", { source, distortion, ...open[0] });
    const before = all.get(keyOf(open[0]));
    all.set(keyOf(open[0]), made);
    if (made.complete || before?.points.length !== made.points.length) this.changed();
    return true;
  }
}
