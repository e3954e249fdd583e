// Keeps a page up to date: by the events of its job, or by asking every few seconds. Without
// this script every page shows how things were when it was loaded, and everything works.
import { morph } from "./morph.js";

const KINDS = ["state", "budget", "priority", "pick", "trial", "round", "status", "build"];
const LEAST_MS = 1000; // between two updates
const CHARTS_MS = 5000; // between two updates of the charts as well
const POLL_MS = 3000;
const LONGEST_MS = 30000; // between two attempts to connect
const SAY_MS = 30000; // between two numbers read aloud

const main = document.getElementById("main");
const badge = document.getElementById("live");
const button = document.getElementById("live-button");

let paused = false;
let source = null;
let timer = 0;
let failures = 0;
let lastEvent = null;
let updatedAt = performance.now();
let chartsAt = performance.now();
let tookMs = 0;
let saidAt = 0;
let running = null; // the update that goes on
let noticedAt = 0;
let tail = 0;

// ---- Updating ---------------------------------------------------------------------------

async function update(kind) {
  const address = new URL(location.href);
  address.searchParams.set("fragment", kind);
  address.hash = "";
  const started = performance.now();
  const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const before = text("state");
  morph(main, page.getElementById("main"));
  updatedAt = performance.now();
  tookMs = updatedAt - started;
  if (kind === "all") chartsAt = updatedAt;
  document.dispatchEvent(new CustomEvent("tuner:updated"));
  announce(before);
}

async function updateNow(kind) {
  if (running) return running;
  running = update(kind)
    .then(() => {
      failures = 0;
      if (!paused) show(source || badge?.dataset.live === "poll" ? "Live" : "Connecting");
    })
    .catch(() => {
      failures += 1;
      updatedAt = performance.now();
      show("The service does not answer, trying again");
      later(Math.min(LEAST_MS * 2 ** failures, LONGEST_MS));
    })
    .finally(() => {
      running = null;
      if (badge?.dataset.live === "poll") later(POLL_MS);
    });
  return running;
}

function later(leastMs = LEAST_MS) {
  if (timer || paused || document.hidden) return;
  // A page that takes long to make is asked for less often.
  const wait = Math.max(leastMs, 4 * tookMs) - (performance.now() - updatedAt);
  timer = setTimeout(() => {
    timer = 0;
    if (!paused && !document.hidden) {
      updateNow(performance.now() - chartsAt >= CHARTS_MS ? "all" : "fast");
    }
  }, Math.max(wait, 50));
}

// ---- Events -----------------------------------------------------------------------------

function connect() {
  if (!badge || paused || document.hidden) return;
  if (badge.dataset.live === "poll") {
    later(POLL_MS);
    return;
  }
  const address = new URL(badge.dataset.source, location.href);
  if (lastEvent !== null) address.searchParams.set("after", lastEvent);
  source = new EventSource(address);
  source.onopen = () => {
    failures = 0;
    show("Live");
  };
  for (const kind of KINDS) source.addEventListener(kind, noticed);
  source.onerror = () => {
    show("Connection lost, trying again");
    if (source && source.readyState === EventSource.CLOSED) {
      // The browser gave up; it does not, where it could connect before.
      disconnect();
      failures += 1;
      setTimeout(() => source || connect(), Math.min(LEAST_MS * 2 ** failures, LONGEST_MS));
    }
  };
}

function noticed(event) {
  if (event.lastEventId) lastEvent = event.lastEventId;
  noticedAt = performance.now();
  later(event.type === "state" || event.type === "build" ? 100 : LEAST_MS);
  tail ||= setTimeout(catchUp, CHARTS_MS);
}

// The last events of a burst come between two updates of the charts.
function catchUp() {
  tail = 0;
  if (paused || document.hidden || chartsAt >= noticedAt) return;
  const wait = CHARTS_MS - (performance.now() - chartsAt);
  if (wait > 0) tail = setTimeout(catchUp, wait);
  else updateNow("all");
}

function disconnect() {
  if (source) source.close();
  source = null;
  clearTimeout(timer);
  timer = 0;
}

// ---- What is said -----------------------------------------------------------------------

function text(id) {
  return document.getElementById(id)?.textContent.trim() ?? "";
}

function show(words) {
  const shown = document.getElementById("live-text");
  if (shown && shown.textContent !== words) shown.textContent = words;
}

function announce(before) {
  const said = document.getElementById("live-said");
  const state = text("state");
  if (!said || !state) return;
  const late = performance.now() - saidAt > SAY_MS;
  if (state === before && !(late && state === "running")) return;
  saidAt = performance.now();
  const figures = [...document.querySelectorAll("#figures > div")].slice(0, 2);
  const words = figures.map((each) => each.textContent.replace(/\s+/g, " ").trim());
  said.textContent = `Job ${state}. ${words.join(". ")}`;
}

// ---- The buttons of the page --------------------------------------------------------------

function pause() {
  paused = !paused;
  button.textContent = paused ? "Resume updates" : "Pause updates";
  if (paused) {
    disconnect();
    show("Updates paused");
  } else {
    updateNow("all");
    connect();
  }
}

function followSoftly(event) {
  const link = event.target.closest?.("a[data-soft]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) {
    return;
  }
  event.preventDefault();
  history.pushState(null, "", link.href);
  update("fast").catch(() => location.reload());
}

function changeTheme(event) {
  event.preventDefault();
  const themes = ["auto", "light", "dark"];
  const theme = event.submitter?.value ?? document.getElementById("theme").value;
  document.cookie = `tuner_theme=${theme}; path=/; max-age=31536000; samesite=lax`;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const control = document.getElementById("theme");
  control.textContent = `Theme: ${theme}`;
  control.value = themes[(themes.indexOf(theme) + 1) % themes.length];
  document.dispatchEvent(new CustomEvent("tuner:theme"));
}

document.getElementById("theme-form")?.addEventListener("submit", changeTheme);
document.addEventListener("click", followSoftly);
window.addEventListener("popstate", () => update("fast").catch(() => location.reload()));
if (badge) {
  // The address of a refused form cannot be asked for again.
  if (badge.dataset.address) history.replaceState(null, "", badge.dataset.address);
  button.hidden = false;
  button.addEventListener("click", pause);
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    if (document.hidden) {
      disconnect();
    } else {
      updateNow("all");
      connect();
    }
  });
  show(badge.dataset.live === "poll" ? "Live" : "Connecting");
  connect();
}
