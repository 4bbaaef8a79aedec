// Softmax regression: its bytes on the wire, training, evaluation.

import {createHash} from "node:crypto";

import {sha256} from "./federation.mjs";

const BINS = 20;
const UNITS = 2 ** 20;

/** Why this program cannot train the model of a federation; empty if it can. */
export function obstacle(about) {
  const shapes = about.manifest.tensors.map(t => t.shape);
  const fits = shapes.length === 2 && shapes[0].length === 2 && shapes[1].length === 1 && shapes[0][0] === shapes[1][0];
  if (!fits || about.manifest.tensors.some(t => t.dtype !== "DTYPE_F32" || t.role !== "ROLE_PARAMETER")) {
    return "the model is not a float32 weight of classes x features with a bias";
  }
  if (about.task !== "classification") return `the task is ${about.task}`;
  if (about.recipe.optimizer !== "sgd") return `the optimizer is ${about.recipe.optimizer}`;
  if (about.update_encoding !== "ENCODING_UNSPECIFIED") return `updates are encoded as ${about.update_encoding}`;
  if (about.plugin_version) return `the federation needs plug-in version ${about.plugin_version}`;
  return "";
}

/** The fingerprint that this program computes itself, to be compared by the server. */
export function fingerprint(manifest) {
  const short = text => text.replace(/^[A-Z]+_/, "").toLowerCase();
  return sha256(manifest.tensors.map(t => `${t.name}|${short(t.dtype)}|${t.shape.join(",")}|${short(t.role)}\n`).join(""));
}

export class Softmax {
  constructor(manifest, bytes) {
    [this.classes, this.features] = manifest.tensors[0].shape;
    this.values = new Float32Array(new Uint8Array(bytes).buffer);  // Little-endian, as on the wire.
  }

  /** Probabilities of the classes for one sample. */
  probabilities(x) {
    const {classes, features, values} = this;
    const logits = new Float64Array(classes);
    for (let c = 0; c < classes; c++) {
      let sum = values[classes * features + c];
      for (let f = 0; f < features; f++) sum += values[c * features + f] * x[f];
      logits[c] = sum;
    }
    const top = Math.max(...logits);
    const powers = logits.map(value => Math.exp(value - top));
    const total = powers.reduce((a, b) => a + b, 0);
    return powers.map(power => power / total);
  }

  /** Descends on samples as the recipe and the work state. Returns mean loss and processed samples; null if stopped. */
  async train(samples, recipe, work, name, stopped) {
    const velocity = new Float32Array(this.values.length);
    const batches = Math.ceil(samples.length / recipe.batch_size);
    let loss = 0, processed = 0;
    for (let epoch = 0; epoch < work.epochs; epoch++) {
      const order = shuffled(samples.length, [recipe.seed, work.stream_round || work.key.round, name, work.key.part, epoch]);
      const wanted = Math.max(1, Math.round(batches * Math.min(1, work.epochs - epoch)));
      for (let batch = 0; batch < wanted; batch++) {
        const chosen = order.slice(batch * recipe.batch_size, (batch + 1) * recipe.batch_size);
        loss += this.#step(chosen.map(i => samples[i]), recipe, work.lr, velocity);
        processed += chosen.length;
      }
      await new Promise(setImmediate);  // Lets heartbeats through.
      if (stopped()) return null;
    }
    return {loss: loss / processed, processed};
  }

  /** One step of SGD with momentum and weight decay. Returns the sum of the losses. */
  #step(batch, recipe, lr, velocity) {
    const {classes, features, values} = this;
    const gradient = new Float64Array(values.length);
    let loss = 0;
    for (const {x, y} of batch) {
      const p = this.probabilities(x);
      loss -= Math.log(Math.max(p[y], 1e-300));
      for (let c = 0; c < classes; c++) {
        const error = (p[c] - (c === y ? 1 : 0)) / batch.length;
        for (let f = 0; f < features; f++) gradient[c * features + f] += error * x[f];
        gradient[classes * features + c] += error;
      }
    }
    for (let i = 0; i < values.length; i++) {
      velocity[i] = recipe.momentum * velocity[i] + gradient[i] + recipe.weight_decay * values[i];
      values[i] -= lr * velocity[i];
    }
    return loss;
  }

  /** The update: the difference to the base model, times a factor. A negative factor makes the others forget. */
  difference(base, factor) {
    return Buffer.from(this.values.map((value, i) => factor * (value - base.values[i])).buffer);
  }

  /** EvaluationSums over samples. */
  evaluate(samples) {
    const zeros = count => new Array(count).fill(0);
    const classes = {bins: zeros(BINS * this.classes), sums: zeros(this.classes), squares: zeros(this.classes)};
    const sums = {samples: samples.length, loss_sum: 0, score_sum: 0, confidences: zeros(BINS), classes};
    for (const {x, y} of samples) {
      const p = this.probabilities(x);
      const bin = Math.min(BINS - 1, Math.floor(BINS * p[y]));
      sums.loss_sum -= Math.log(Math.max(p[y], 1e-300));
      sums.score_sum += p.indexOf(Math.max(...p)) === y ? 1 : 0;
      sums.confidences[bin] += 1;
      classes.bins[BINS * y + bin] += 1;
      classes.sums[y] += p[y];
      classes.squares[y] += p[y] ** 2;
    }
    for (const list of [classes.sums, classes.squares]) list.forEach((value, c) => { list[c] = Math.round(value * UNITS) / UNITS; });
    return sums;
  }

  /** How often the model is more confident about a forget sample than about an unseen one. */
  ranks(forget, unseen) {
    const [mine, others] = [forget, unseen].map(samples => samples.map(({x, y}) => this.probabilities(x)[y]));
    let wins = 0;
    for (const a of mine) for (const b of others) wins += a > b ? 1 : a === b ? 0.5 : 0;
    return {auc: wins / (mine.length * others.length), forget_samples: mine.length, unseen_samples: others.length};
  }
}

/** The numbers below `count` in an order that depends on the purpose alone. */
function shuffled(count, purpose) {
  const rank = i => createHash("sha256").update(`${purpose.join("|")}|${i}`).digest("hex");
  return Array.from({length: count}, (_, i) => [rank(i), i]).sort(([a], [b]) => a < b ? -1 : 1).map(([, i]) => i);
}
