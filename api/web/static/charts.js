// Draws the charts of a page with Plotly, which is loaded when the first of them becomes visible.

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const { plotly: address, styles } = document.getElementById("charts-script").dataset;
const drawn = new WeakMap(); // plot -> text of the figure it was drawn from
let loading = null;

function load() {
  // Plotly would add style elements, which the page policy forbids; the few rules that matter are
  // in parts.css. It skips a style element whose id exists already.
  for (const id of ["plotly.js-style-global", ...styles.split(" ")]) {
    const mark = document.createElement("template");
    mark.id = id;
    mark.className = "no-inline-styles";
    document.head.append(mark);
  }
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => resolve(window.Plotly);
    script.onerror = reject;
    document.head.append(script);
  });
}

async function draw(plot, { again = false } = {}) {
  const data = document.getElementById(plot.dataset.chart);
  if (!data || (!again && drawn.get(plot) === data.textContent)) return;
  drawn.set(plot, data.textContent);
  loading ??= load();
  const plotly = await loading;
  const figure = coloured(JSON.parse(data.textContent));
  Object.assign(figure.layout, look(figure.layout));
  // A legend would hide a narrow chart; the table names the tasks as well.
  if (plot.clientWidth < 560 && figure.data.length > 3) figure.layout.showlegend = false;
  await plotly.react(plot, figure.data, figure.layout, CONFIG);
}

// Resolves a colour name of the style sheet in the current theme.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = name;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

function coloured(value) {
  if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
  if (Array.isArray(value)) {
    return value.length && typeof value[0] === "number" ? value : value.map(coloured);
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
  }
  return value;
}

function look(layout) {
  const ink = colour("var(--ink)");
  const line = colour("var(--line)");
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, color: ink, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    hoverlabel: { bgcolor: colour("var(--surface)"), bordercolor: line, font: { color: ink } },
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
  };
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
  },
  { rootMargin: "300px" },
);

function watch() {
  for (const plot of document.querySelectorAll(".plot")) {
    seen.observe(plot);
    if (drawn.has(plot)) draw(plot);
  }
}

function redraw() {
  for (const plot of document.querySelectorAll(".plot")) {
    if (drawn.has(plot)) draw(plot, { again: true });
  }
}

watch();
document.addEventListener("tuner:updated", watch);
document.addEventListener("tuner:theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
