// Run a library once in Node.js: node run_library.js ADDON FOLDER [FILE...]
//
// ADDON is the absolute path of addon.c, compiled. Files and lines are those of run_library.c.
"use strict";
const fs = require("fs");

const [path, folder, ...files] = process.argv.slice(2);
const tuner = require(path);

try {
  const library = tuner.open(folder);
  const buffers = tuner.inputs(library).map((input, number) =>
    number < files.length ? new Uint8Array(fs.readFileSync(files[number])).buffer : input.data,
  );
  for (const { name, dtype, shape, data } of tuner.run(library, buffers)) {
    const numbers = dtype === "float32" ? ": " + new Float32Array(data).slice(0, 8).join(" ") : "";
    console.log(`${name} ${dtype} ${shape.join("x")}${numbers}`);
  }
} catch (error) {
  console.error(`run_library.js: ${error.message}`);
  process.exitCode = 1;
}
