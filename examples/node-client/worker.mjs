// A worker: joins, asks for work, trains, evaluates, and declines what it cannot do.

import {randomBytes} from "node:crypto";
import {existsSync, readFileSync, writeFileSync} from "node:fs";

import {Softmax, fingerprint, obstacle} from "./softmax.mjs";

const WAIT_SECONDS = 20;

export class Worker {
  constructor(federation, data, keyFile) {
    this.federation = federation;
    this.data = data;
    this.keyFile = keyFile;
    this.instance = randomBytes(16).toString("hex");
    this.training = "";
    this.abandoned = false;
    this.ended = false;
  }

  /** Reads the federation's description. Throws if this program cannot take part. */
  async describe() {
    this.about = await this.federation.call("Describe", {});
    const why = obstacle(this.about);
    if (why) throw new Error(`this client cannot join: ${why}`);
    const features = this.about.manifest.tensors[0].shape[1];
    const wrong = [...this.data.train, ...this.data.holdout].find(sample => sample.x.length !== features);
    if (wrong) throw new Error(`the data has ${wrong.x.length} values a sample, the model needs ${features}`);
  }

  async join(onlyIfNoWorker = false) {
    const joined = await this.federation.call("Join", {
      instance: this.instance,
      samples: this.data.train.length,
      holdout_samples: this.data.holdout.length,
      manifest_fingerprint: fingerprint(this.about.manifest),
      recipe_fingerprint: this.about.recipe.fingerprint,
      client_version: "node example",
      device: "node",
      only_if_no_worker: onlyIfNoWorker,
      adapts: false,  // A request for adaptive strength then gets a fixed one.
    });
    this.pin(joined.server_key.toString("hex"));
    Object.assign(this, {session: joined.session, chunkBytes: joined.chunk_bytes, beatSeconds: joined.heartbeat_seconds});
    console.error(`joined as ${this.federation.name} with ${this.data.train.length} samples`);
  }

  /** Stores the server's key at the first join and refuses another one later. */
  pin(key) {
    if (!existsSync(this.keyFile)) writeFileSync(this.keyFile, `${key}\n`, {flag: "wx"});
    const pinned = readFileSync(this.keyFile, "ascii").trim();
    if (pinned !== key) throw new Error(`the server's key is not the one in ${this.keyFile}; ask the operator before you delete that file`);
  }

  /** Works until the server ends the session. Returns why: "forgotten", "superseded" or "stopped". */
  async run() {
    const beats = this.#heartbeats();
    try {
      for (;;) {
        try {
          const order = await this.#next();
          if (order) return order;
        } catch (error) {
          if (error.reason === "FORGOTTEN") return "forgotten";
          if (error.reason === "SUPERSEDED") return "superseded";
          if (error.reason === "UNKNOWN_SESSION") await this.join();
          else if (error.reason !== "STALE_ROUND") throw error;
        }
      }
    } finally {
      this.ended = true;
      await beats;
    }
  }

  async #next() {
    const wait = {session: this.session, timeout_seconds: WAIT_SECONDS};
    const reply = await this.federation.call("WaitForWork", wait, {seconds: WAIT_SECONDS + 10});
    if (reply.work === "train") await this.#train(reply.train);
    if (reply.work === "evaluate") await this.#evaluate(reply.evaluate);
    return reply.work === "leave" ? (reply.leave.reason === "REASON_FORGOTTEN" ? "forgotten" : "stopped") : "";
  }

  /** Signs of life; a reply can end the training under way. A failed one ends nothing: the next call reports the error. */
  async #heartbeats() {
    while (!this.ended) {
      const training = this.training;
      try {
        const activity = training ? "training" : "waiting";
        const reply = await this.federation.call("Heartbeat", {session: this.session, activity, training_id: training});
        if (training && training === this.training && reply.abandon_training) this.abandoned = true;
      } catch (error) {
        console.error(`heartbeat: ${error.message}`);
      }
      for (let waited = 0; waited < this.beatSeconds && !this.ended; waited += 0.1) await new Promise(done => setTimeout(done, 100));
    }
  }

  async #train(work) {
    const why = unable(work);
    if (why) {
      console.error(`declined: ${why}`);
      await this.federation.call("DeclineWork", {key: work.key, reason: why, session: this.session, for_good: true});
      return;
    }
    const base = new Softmax(this.about.manifest, await this.federation.fetchModel(work.base_version));
    const model = new Softmax(this.about.manifest, Buffer.from(base.values.buffer));
    Object.assign(this, {training: work.training_id, abandoned: false});
    const done = await model.train(this.data.train, this.about.recipe, work, this.federation.name, () => this.abandoned);
    this.training = "";
    if (!done) return;
    // PUF's unlearning round is ordinary training whose update is negated and scaled.
    const factor = work.flip === "FLIP_CLIENT" ? work.scale : 1;
    const header = {
      key: work.key,
      base_version: work.base_version,
      samples: this.data.train.length,
      applied_scale: factor,
      manifest_fingerprint: this.about.manifest.fingerprint,
      train_loss: done.loss,
      samples_processed: done.processed,
      unlearned_samples: work.ticket_id ? this.data.train.length : 0,
    };
    const reply = await this.federation.submitUpdate(header, model.difference(base, factor), this.chunkBytes);
    console.error(`round ${work.key.round}: sent an update with factor ${factor}${reply.duplicate ? " (again)" : ""}`);
  }

  async #evaluate(work) {
    const model = new Softmax(this.about.manifest, await this.federation.fetchModel(work.version));
    await this.federation.call("ReportEvaluation", {
      evaluation: work.evaluation,
      version: work.version,
      holdout: model.evaluate(this.data.holdout),
      training: work.training_side ? model.evaluate(this.data.train) : null,
    });
  }
}

/** Why this program cannot do an assignment; empty if it can. */
function unable(work) {
  if (!["", "train"].includes(work.routine)) return `this client does not know the routine ${work.routine}`;
  if (work.key.part !== "PART_MAIN") return "this client forgets all of its samples or none";
  if (work.outputs.length) return "this client uploads all tensors";
  return "";
}
