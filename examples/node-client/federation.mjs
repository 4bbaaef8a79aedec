// The calls of puf.v1.Federation as promises: identity, reasons of errors, repetition, streams with checked digests.

import {createHash} from "node:crypto";
import {setTimeout as sleep} from "node:timers/promises";
import {fileURLToPath} from "node:url";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const here = path => fileURLToPath(new URL(path, import.meta.url));
// A uint64 becomes a number: counts and versions stay far below 2^53.
const options = {keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true, includeDirs: [here("../../protos")]};
const contract = grpc.loadPackageDefinition(loader.loadSync("puf/v1/federation.proto", options));
const details = loader.loadSync(here("google_rpc.proto"), options);

const REPEATABLE = new Set([grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED, grpc.status.CANCELLED]);
const CALL_SECONDS = 30;

/** An error of the server. Programs match on `reason`; it is empty if gRPC itself failed. */
export class CallError extends Error {
  constructor(error) {
    super(error.details || error.message);
    this.code = error.code;
    this.reason = "";
    this.retrySeconds = REPEATABLE.has(error.code) ? 1 : null;
    const [packed] = error.metadata?.get("grpc-status-details-bin") ?? [];
    for (const detail of packed ? details["google.rpc.Status"].deserialize(packed).details : []) {
      const type = detail.type_url.split("/").pop();
      if (type === "google.rpc.ErrorInfo") this.reason = details[type].deserialize(detail.value).reason;
      if (type === "google.rpc.RetryInfo") {
        const delay = details[type].deserialize(detail.value).retry_delay;
        this.retrySeconds = delay.seconds + delay.nanos / 1e9;
      }
    }
  }
}

/** Waits and returns if the call may be repeated; throws the error otherwise. */
async function orGiveUp(error) {
  if (!(error instanceof CallError) || error.retrySeconds === null) throw error;
  console.error(`trying again: ${error.message}`);
  await sleep(1000 * Math.max(error.retrySeconds, 0.2));
}

export class Federation {
  /** Without TLS the name is sent as it is: for a server on this machine. */
  constructor(address, name) {
    this.name = name;
    this.metadata = new grpc.Metadata();
    this.metadata.set("puf-client", name);
    this.stub = new contract.puf.v1.Federation(address, grpc.credentials.createInsecure(), {
      "grpc.max_receive_message_length": 64 << 20, "grpc.enable_retries": 0,
    });
  }

  close() {
    this.stub.close();
  }

  /** One call with one reply. Repeating a call that had succeeded changes nothing, so every call may be repeated. */
  async call(method, request, {seconds = CALL_SECONDS} = {}) {
    for (;;) {
      try {
        return await new Promise((resolve, reject) => {
          const deadline = Date.now() + 1000 * seconds;
          this.stub[method](request, this.metadata, {deadline}, (error, reply) => error ? reject(new CallError(error)) : resolve(reply));
        });
      } catch (error) {
        await orGiveUp(error);
      }
    }
  }

  /** The bytes of a model, after a check of length and digest. */
  async fetchModel(version) {
    for (;;) {
      try {
        return await this.#fetchOnce(version);
      } catch (error) {
        await orGiveUp(error);
      }
    }
  }

  async #fetchOnce(version) {
    const chunks = [];
    let header = null;
    try {
      for await (const frame of this.stub.FetchModel({version}, this.metadata)) {
        if (frame.frame === "header") header = frame.header;
        else chunks.push(frame.chunk.data);
      }
    } catch (error) {
      throw new CallError(error);
    }
    const model = Buffer.concat(chunks);
    if (!header || model.length !== header.byte_length || !sha256(model).equals(header.digest)) {
      throw new Error(`model ${version} arrived damaged`);
    }
    return model;
  }

  /** Sends an update until the server has it. The same update again is acknowledged and counts once. */
  async submitUpdate(header, update, chunkBytes) {
    for (;;) {
      try {
        return await new Promise((resolve, reject) => {
          const stream = this.stub.SubmitUpdate(this.metadata, (error, reply) => error ? reject(new CallError(error)) : resolve(reply));
          stream.on("error", () => {});  // The callback gets it.
          stream.write({header: {...header, byte_length: update.length, digest: sha256(update)}});
          for (let offset = 0; offset < update.length; offset += chunkBytes) {
            stream.write({chunk: {offset, data: update.subarray(offset, offset + chunkBytes)}});
          }
          stream.end();
        });
      } catch (error) {
        await orGiveUp(error);
      }
    }
  }

  /** The ticket now and after every change. A broken stream is begun again: its first reply is complete. */
  async *followTicket(id) {
    for (;;) {
      try {
        for await (const {ticket} of this.stub.FollowTicket({ticket_id: id}, this.metadata)) yield ticket;
        return;
      } catch (error) {
        await orGiveUp(error.code === undefined ? error : new CallError(error));
      }
    }
  }
}

export function sha256(bytes) {
  return createHash("sha256").update(bytes).digest();
}
