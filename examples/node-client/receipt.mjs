// Verifies a receipt by the steps of docs/other-languages.md, with nothing but Node's crypto.

import {createPublicKey, verify as verifySignature} from "node:crypto";

const HEAD = '{\n "receipt": ';
const TAIL = ',\n "signature": ';
// The DER encoding of an Ed25519 public key is this prefix and the 32 bytes of the key.
const PREFIX = Buffer.from("302a300506032b6570032100", "hex");

/** The content of a receipt that the owner of `trustedKey` (hex) signed. Throws if it is not one. */
export function verifyReceipt(file, trustedKey) {
  const text = file.toString("latin1");
  const end = text.lastIndexOf(TAIL);
  if (!text.startsWith(HEAD) || end < 0) throw new Error("this is not a receipt, or it is damaged");
  const body = text.slice(HEAD.length, end);
  const signature = JSON.parse(text.slice(end + TAIL.length).replace(/\n\}\n$/, ""));
  if (signature.algorithm !== "Ed25519") throw new Error(`the signature is of another kind: ${signature.algorithm}`);
  if (signature.public_key !== trustedKey) throw new Error("the receipt was signed by another key than the federation's");
  // Numbers and strings keep their spelling: only white space between tokens is removed.
  const compact = body.replace(/("(?:[^"\\]|\\.)*")|[ \n]+/g, (_, quoted) => quoted ?? "");
  const key = createPublicKey({key: Buffer.concat([PREFIX, Buffer.from(trustedKey, "hex")]), format: "der", type: "spki"});
  const signed = Buffer.from(`puf receipt 1\n${compact}`, "latin1");
  if (!verifySignature(null, signed, key, Buffer.from(signature.value, "hex"))) {
    throw new Error("the receipt was changed after it was signed");
  }
  const content = JSON.parse(body);
  if (content.kind !== "puf-receipt" || content.format !== 1) throw new Error(`a receipt of format ${content.format} is unknown here`);
  return content;
}
