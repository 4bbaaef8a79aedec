// Verifies a receipt in the browser: Ed25519 over the exact bytes that the server signed.
//
// The signed bytes are the line "puf receipt 1" and the canonical text of "receipt": sorted keys, no spaces, ASCII. The file
// has the same text with spaces. JSON.parse would lose the spelling of numbers, so the text itself is rewritten.
"use strict";
(() => {
  const PURPOSE = "puf receipt 1\n";
  const SIGNATURE = /^\{"receipt":(\{.*\}),"signature":\{"algorithm":"Ed25519","public_key":"([0-9a-f]{64})","value":"([0-9a-f]{128})"\}\}$/s;

  // The tokens of a JSON text: strings, single marks, and runs of other characters.
  const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gs;

  function compact(text) {
    return (text.match(TOKENS) || []).join("");
  }

  // The one spelling of the file: an indent of one space, one item in a line.
  function spelled(text) {
    const tokens = text.match(TOKENS) || [], out = [];
    let depth = 0;
    tokens.forEach((token, i) => {
      const next = tokens[i + 1], before = tokens[i - 1];
      if (token === "{" || token === "[") {
        out.push(token);
        if (next !== "}" && next !== "]") out.push("\n" + " ".repeat(++depth));
      } else if (token === "}" || token === "]") {
        if (before !== "{" && before !== "[") out.push("\n" + " ".repeat(--depth));
        out.push(token);
      } else if (token === ",") out.push(",\n" + " ".repeat(depth));
      else out.push(token === ":" ? ": " : token);
    });
    return out.join("") + "\n";
  }

  const unhex = (text) => Uint8Array.from(text.match(/../g), (pair) => parseInt(pair, 16));
  const hex = (buffer) => [...new Uint8Array(buffer)].map((b) => b.toString(16).padStart(2, "0")).join("");

  async function verify(bytes, federationKey) {
    if (bytes.some((b) => b > 127)) return {valid: false, why: "it contains a byte that no receipt contains"};
    const text = new TextDecoder("ascii").decode(bytes);
    const parts = SIGNATURE.exec(compact(text));
    if (!parts || spelled(text) !== text) return {valid: false, why: "it is not a receipt, or it was changed"};
    if (!globalThis.crypto?.subtle) return {unknown: "this page was not loaded over HTTPS or from this machine"};
    let key;
    try {
      key = await crypto.subtle.importKey("raw", unhex(parts[2]), {name: "Ed25519"}, false, ["verify"]);
    } catch { return {unknown: "this browser does not know Ed25519"}; }
    const signed = new TextEncoder().encode(PURPOSE + parts[1]);
    if (!await crypto.subtle.verify({name: "Ed25519"}, key, unhex(parts[3]), signed)) {
      return {valid: false, why: "it was changed after it was signed"};
    }
    const fingerprint = hex(await crypto.subtle.digest("SHA-256", unhex(parts[2]))).slice(0, 32);
    if (fingerprint !== federationKey) return {valid: false, why: `it is signed with another key: ${fingerprint}`};
    return {valid: true, receipt: JSON.parse(parts[1])};
  }

  function show(box, result) {
    const head = document.createElement("b");
    let text;
    if (result.valid) {
      const {ticket} = result.receipt;
      head.textContent = "VALID."; box.className = "notice good";
      text = ` Signed by this federation's key, not one byte was changed. Request ${ticket.id} of ${ticket.client}.`;
    } else if (result.unknown) {
      head.textContent = "Not verified:"; box.className = "notice open";
      text = ` ${result.unknown}. Use puf-client verify.`;
    } else {
      head.textContent = "INVALID:"; box.className = "notice bad";
      text = ` ${result.why}.`;
    }
    box.replaceChildren(head, text);
    box.hidden = false;
  }

  const box = document.getElementById("verified"), input = document.getElementById("check");
  document.getElementById("check-form").hidden = false;
  async function own() {
    const reply = await fetch(box.dataset.receipt, {cache: "no-store"});
    if (reply.ok) show(box, await verify(new Uint8Array(await reply.arrayBuffer()), box.dataset.key));
  }
  if (box) own();
  // The request was completed while the page was open: load it with its receipt.
  document.addEventListener("puf:refreshed", () => {
    if (!box && document.getElementById("receipt-file")) location.reload();
  });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) show(document.getElementById("checked"), await verify(new Uint8Array(await file.arrayBuffer()), input.dataset.key));
  });
})();
