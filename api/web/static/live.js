// Keeps a page up to date: through the events of its job, or by polling. Without this script a
// page shows the state of its loading, and everything else works.
import { morph } from "./morph.js";

const KINDS = ["state", "budget", "priority", "labels", "pick", "trial", "round", "status", "build", "webhook"];
const MIN_UPDATE_MS = 1000; // between two updates
const CHARTS_MS = 5000; // between two updates of the charts as well
const POLL_MS = 3000;
const MAX_RETRY_MS = 30000; // between two attempts to connect
const ANNOUNCE_MS = 30000; // between two announcements to screen readers
const SILENCE_MS = 15000; // without an event, after which a job may not run any more

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
let announcedAt = 0;
let running = null; // the running update
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
      show("No answer from the service, retrying");
      later(Math.min(MIN_UPDATE_MS * 2 ** failures, MAX_RETRY_MS));
    })
    .finally(() => {
      running = null;
      if (badge?.dataset.live === "poll") later(POLL_MS);
    });
  return running;
}

function later(delayMs = MIN_UPDATE_MS) {
  if (timer || paused || document.hidden) return;
  // Slow pages are updated less frequently.
  const wait = Math.max(delayMs, 4 * tookMs) - (performance.now() - updatedAt);
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
    show("Connection lost, reconnecting");
    if (source && source.readyState === EventSource.CLOSED) {
      // The browser gave up, which it does unless it was connected before.
      disconnect();
      failures += 1;
      setTimeout(() => source || connect(), Math.min(MIN_UPDATE_MS * 2 ** failures, MAX_RETRY_MS));
    }
  };
}

function noticed(event) {
  if (event.lastEventId) lastEvent = event.lastEventId;
  noticedAt = performance.now();
  later(event.type === "state" || event.type === "build" ? 100 : MIN_UPDATE_MS);
  tail ||= setTimeout(catchUp, CHARTS_MS);
}

// A process that is killed sends no event.
setInterval(() => {
  if (source && text("state") === "running" && performance.now() - noticedAt > SILENCE_MS) later();
}, SILENCE_MS);

// The last events of a burst fall between two updates of the charts.
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

// ---- Announcements -----------------------------------------------------------------------

function text(id) {
  return document.getElementById(id)?.textContent.trim() ?? "";
}

function show(words) {
  const shown = document.getElementById("live-text");
  if (shown && shown.textContent !== words) shown.textContent = words;
}

function announce(before) {
  const status = document.getElementById("live-said");
  const state = text("state");
  if (!status || !state) return;
  const late = performance.now() - announcedAt > ANNOUNCE_MS;
  if (state === before && !(late && state === "running")) return;
  announcedAt = performance.now();
  const figures = [...document.querySelectorAll("#figures > div")].slice(0, 2);
  const words = figures.map((figure) => figure.textContent.replace(/\s+/g, " ").trim());
  status.textContent = `Job ${state}. ${words.join(". ")}`;
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
  // The address of a rejected form cannot be loaded again.
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
