// puf-node-client: run, forget or verify. See README.md.

import {readFileSync, writeFileSync} from "node:fs";
import {parseArgs} from "node:util";

import {Federation} from "./federation.mjs";
import {verifyReceipt} from "./receipt.mjs";
import {Softmax} from "./softmax.mjs";
import {Worker} from "./worker.mjs";

const USAGE = `usage:
  node client.mjs run --name NAME --data FILE.csv [--server HOST:PORT] [--key-file FILE]
  node client.mjs forget --name NAME --data FILE.csv [--receipt FILE] [--server HOST:PORT] [--key-file FILE]
  node client.mjs verify --receipt FILE [--key-file FILE]`;
// As of puf-client: supervisors must not restart a client that ends with one of the last two.
const EXIT = {stopped: 0, failure: 1, usage: 2, forgotten: 10, superseded: 11};

/** Lines of "train" or "holdout", the label, the values. */
function readData(path) {
  const data = {train: [], holdout: []};
  for (const [at, line] of readFileSync(path, "ascii").trimEnd().split("\n").entries()) {
    const [part, label, ...values] = line.split(",");
    const sample = {y: Number(label), x: Float32Array.from(values, Number)};
    if (!(part in data) || !Number.isInteger(sample.y) || sample.x.some(Number.isNaN)) {
      throw new Error(`${path}, line ${at + 1}: expected train or holdout, a label and numbers`);
    }
    data[part].push(sample);
  }
  if (!data.train.length || !data.holdout.length) throw new Error(`${path} needs lines of train and of holdout`);
  return data;
}

/** Files the request, does the unlearning rounds unless another worker does, measures, fetches the receipt. */
async function forget(federation, worker, path) {
  const {ticket} = await federation.call("FileUnlearning", {request: {request_key: "node-client", scope: "SCOPE_CLIENT"}});
  console.error(`filed ${ticket.id}`);
  let working = Promise.resolve();
  try {
    await worker.join(true);
    working = worker.run();
    working.catch(() => {});  // Awaited below.
  } catch (error) {
    if (!["WORKER_ALIVE", "FORGOTTEN"].includes(error.reason)) throw error;
  }
  const measured = new Set();
  let last = ticket;
  for await (last of federation.followTicket(ticket.id)) await measure(federation, worker, last, measured);
  await working;
  if (last.state !== "TICKET_STATE_COMPLETED") throw new Error(`${last.id} ended as ${last.state}: ${last.history.at(-1).note}`);
  const {receipt} = await federation.call("GetReceipt", {ticket_id: last.id});
  const content = verifyReceipt(receipt, readFileSync(worker.keyFile, "ascii").trim());
  writeFileSync(path, receipt);
  report(content, path);
}

/** Measures the models that are new on the ticket: the server names up to three, and deletes the first two at the end. */
async function measure(federation, worker, ticket, measured) {
  const {train, holdout} = worker.data;
  for (const field of ["version_before", "version_unlearned", "version_recovered"]) {
    const version = ticket[field];
    // An unset field is 0 here, so the optional's own marker counts.
    if (ticket[`_${field}`] === undefined || measured.has(version)) continue;
    measured.add(version);
    try {
      const model = new Softmax(worker.about.manifest, await federation.fetchModel(version));
      await federation.call("ReportMeasurement", {
        ticket_id: ticket.id, version, forget: model.evaluate(train), holdout: model.evaluate(holdout), own: model.ranks(train, holdout),
      });
    } catch (error) {
      if (!["NOT_FOUND", "NOT_NOW"].includes(error.reason)) throw error;
      console.error(`model ${version} was not measured: ${error.message}`);
    }
  }
}

function report(content, path) {
  const {ticket, method, measured_by_client: own} = content;
  console.log(`${path} is VALID: ${ticket.client} was forgotten by ${method.name}; verdict: ${own.verdict ?? "not measured"}`);
}

async function main() {
  const {values, positionals: [command]} = parseArgs({allowPositionals: true, options: {
    server: {type: "string", default: process.env.PUF_SERVER ?? "127.0.0.1:7300"}, name: {type: "string"}, data: {type: "string"},
    "key-file": {type: "string", default: "server-key.hex"}, receipt: {type: "string", default: "receipt.json"},
  }});
  if (command === "verify") {
    report(verifyReceipt(readFileSync(values.receipt), readFileSync(values["key-file"], "ascii").trim()), values.receipt);
    return EXIT.stopped;
  }
  if (!["run", "forget"].includes(command) || !values.name || !values.data) {
    console.error(USAGE);
    return EXIT.usage;
  }
  const federation = new Federation(values.server, values.name);
  const worker = new Worker(federation, readData(values.data), values["key-file"]);
  try {
    await worker.describe();
    if (command === "forget") {
      await forget(federation, worker, values.receipt);
      return EXIT.stopped;
    }
    await worker.join();
    const why = await worker.run();
    console.error(why);
    return EXIT[why];
  } finally {
    federation.close();
  }
}

main().then(code => { process.exitCode = code; }, error => {
  console.error(`error: ${error.message}`);
  process.exitCode = error.reason === "FORGOTTEN" ? EXIT.forgotten : EXIT.failure;
});
