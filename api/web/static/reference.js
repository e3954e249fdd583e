// Sends the requests of the reference and shows their responses.

const MAX_SHOWN = 100_000;
// Time limit of a request, to which the wait that it asks for is added.
const MAX_MS = 15_000;

for (const form of document.querySelectorAll("form[data-path]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}

// A link to an operation opens it.
const linked = document.getElementById(location.hash.slice(1));
if (linked?.matches("details")) linked.open = true;

async function send(form) {
  const { method, path } = form.dataset;
  const headers = new Headers();
  const query = new URLSearchParams();
  let address = path;
  let body;
  for (const field of form.querySelectorAll("[data-in]")) {
    const value = field.value.trim();
    if (field.dataset.in === "body") {
      body = value;
      headers.set("content-type", "application/json");
    } else if (!value) {
      continue;
    } else if (field.dataset.in === "path") {
      address = address.replace(`{${field.name}}`, encodeURIComponent(value));
    } else if (field.dataset.in === "header") {
      headers.set(field.name, value);
    } else {
      query.append(field.name, value);
    }
  }
  if (query.size) address += `?${query}`;
  show(form, `${method} ${address}: waiting`, "");
  const started = performance.now();
  const signal = AbortSignal.timeout(MAX_MS + 1000 * (Number(query.get("wait")) || 0));
  try {
    const answer = await fetch(address, { method, headers, body, signal });
    const type = answer.headers.get("content-type") ?? "no content";
    const text = /json|text|event-stream/.test(type) ? await read(answer) : "";
    const ms = Math.round(performance.now() - started);
    show(form, `${answer.status} ${answer.statusText} · ${type} · ${ms} ms`, pretty(text, type));
    if (!text) await answer.body?.cancel();
  } catch (error) {
    show(form, `No response: ${error.message}`, "");
  }
}

// Reads the beginning of a response; a stream of events ends with the time limit.
async function read(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    while (text.length < MAX_SHOWN) {
      const { value, done } = await reader.read();
      if (done) return text;
      text += value;
    }
    await reader.cancel();
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
  }
  return text;
}

function pretty(text, type) {
  if (!/json/.test(type) || /jsonl/.test(type)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function show(form, line, text) {
  const box = form.querySelector(".answer");
  box.hidden = false;
  box.querySelector("strong").textContent = line;
  const shown = box.querySelector("pre");
  shown.textContent = text;
  shown.hidden = !text;
}
