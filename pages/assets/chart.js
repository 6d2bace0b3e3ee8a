// A chart that is updated in place: with the layout's uirevision, Plotly.react keeps zoom and pan, and the label
// under the pointer is shown again with its new value. Streamlit calls this function for every message.

const LETTERS = 12; // pixels, where a chart gives no size
const TITLE_LETTERS = 14;
const LINE = 1.35; // height of a line of text, in sizes of its letters
const AROUND = 10; // pixels between a panel, its labels, their title and the edge

// Plotly draws axes up to four times to find room for their labels: in heatmaps the room is known before. Names on
// axes are measured in the reader's font; the room for numbers and the legend is left to plotly, and that between
// panels is given.
function makeRoom({ data, layout }, family) {
  if (!data.some((trace) => trace.type === "heatmap")) return;
  const pen = document.createElement("canvas").getContext("2d");
  const margin = { ...layout.margin };
  let below = 0;
  for (const [name, axis] of Object.entries(layout)) {
    if (!/^[xy]axis/.test(name) || !axis.automargin || !axis.ticktext) continue;
    axis.automargin = false;
    const across = name.startsWith("x");
    const beside = layout[(axis.anchor ?? (across ? "y" : "x")).replace(/^[xy]/, "$&axis")];
    if (beside?.domain?.[0] > 0.001) continue; // another panel lies between this one and the edge
    const size = axis.tickfont?.size ?? LETTERS;
    pen.font = `${size}px ${family}`;
    const lines = axis.ticktext.flatMap((text) => text.split("<br>"));
    const longest = Math.max(0, ...lines.map((line) => pen.measureText(shown(line)).width));
    const angle = Math.abs(((axis.tickangle ?? 0) * Math.PI) / 180);
    const labels = across ? Math.sin(angle) * longest + Math.cos(angle) * LINE * size : longest;
    const { text, font, standoff } = axis.title ?? {};
    const title = text ? LINE * (font?.size ?? TITLE_LETTERS) + (standoff ?? AROUND) : 0;
    const room = Math.ceil(labels + title + AROUND);
    if (across) margin.b = below = Math.max(below, room);
    else margin.l = Math.max(margin.l, room);
  }
  layout.height += margin.b - layout.margin.b; // cells keep their size
  layout.margin = margin;
}

// What plotly shows of an escaped name.
function shown(text) {
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// One chart at a time, and the page may answer between two of them.
let turn = Promise.resolve();
function inTurn(work) {
  const done = turn.then(() => new Promise((go) => setTimeout(go))).then(work);
  turn = done.catch(() => {}); // who waits for ``done`` says what went wrong
  return done;
}

function followPointer(host) {
  const remember = (event) => (host.fedlensPointer = { bubbles: true, clientX: event.clientX, clientY: event.clientY });
  host.addEventListener("mousemove", remember, true);
  host.addEventListener("mouseleave", () => (host.fedlensPointer = null));
}

// Plotly looks at the window only: a chart beside which another one appears would lie over it.
function followSize(host) {
  new ResizeObserver(() => {
    if (host._fullLayout && host.clientWidth && Math.abs(host.clientWidth - host._fullLayout.width) > 1)
      window.Plotly.relayout(host, { autosize: true });
  }).observe(host);
}

// Plotly keeps the label with its old value until the pointer moves.
function hoverAgain(host) {
  const pointer = host.fedlensPointer;
  const under = pointer && document.elementFromPoint(pointer.clientX, pointer.clientY);
  if (under && host.contains(under)) under.dispatchEvent(new MouseEvent("mousemove", pointer));
}

// The buttons of plotly have none for it.
const FULL_SCREEN = {
  name: "Full screen",
  title: "Full screen",
  icon: { width: 24, height: 24, path: "M7 14H5v5h5v-2H7v-3zM5 10h2V7h3V5H5v5zm12 7h-3v2h5v-5h-2v3zM14 5v2h3v3h2V5h-5z" },
  click: (host) => (document.fullscreenElement ? document.exitFullscreen() : host.requestFullscreen()),
};
const BUTTONS = document.fullscreenEnabled ? [FULL_SCREEN] : []; // telephones of Apple show videos only

function heightOf(host) {
  return document.fullscreenElement === host ? window.innerHeight : host.fedlensHeight;
}

function followScreen(host) {
  host.addEventListener("fullscreenchange", () => window.Plotly.relayout(host, { height: heightOf(host), autosize: true }));
}

// The line under the pointer, or whose name in the legend is under it, is brought out: the others fade.
const FADED = "0.12";
const isLine = (trace) => trace.type === "scatter" && (trace.mode ?? "").includes("lines");
const keyOf = (trace) => trace.legendgroup || `trace ${trace.index}`;
const traceOf = (element) => element?.__data__?.[0]?.trace;

function bringOut(host, line) {
  const key = line && keyOf(line);
  for (const element of host.querySelectorAll(".scatterlayer .trace")) {
    const own = traceOf(element);
    element.style.opacity = !key || !own || keyOf(own) === key ? "" : FADED;
  }
}

function followLegend(host) {
  const lineOf = (element) => {
    const trace = traceOf(element?.closest?.(".legend .traces"));
    return trace && isLine(trace) ? trace : undefined;
  };
  host.addEventListener("mouseover", ({ target }) => lineOf(target) && bringOut(host, lineOf(target)));
  host.addEventListener("mouseout", ({ target }) => lineOf(target) && bringOut(host));
}

// What plotly itself tells of the pointer; it forgets who listens when a chart is drawn from scratch.
function listen(host) {
  if (!host.on || host.fedlensListened === host._ev) return;
  host.fedlensListened = host._ev;
  // a label for all lines has a point of each; only a single point says which line is meant
  host.on("plotly_hover", ({ points }) => {
    if (points.length === 1 && isLine(points[0].fullData)) bringOut(host, points[0].fullData);
  });
  host.on("plotly_unhover", () => bringOut(host));
  host.on("plotly_click", ({ points }) => {
    const point = points.find(({ fullData }) => fullData.type === "heatmap");
    if (!point) return;
    const panel = host._fullData.filter((t) => t.type === "heatmap" && t.index < point.fullData.index).length;
    host.fedlensTell("cell", { panel, row: point.y, column: point.x, at: Date.now() });
  });
}

async function react(Plotly, host, figure, config, text) {
  if (host.fedlensText !== text || !host.isConnected) return; // a newer one came meanwhile, or the page went
  if (host.fedlensFailed) host.replaceChildren();
  host.fedlensFailed = false;
  host.fedlensHeight = figure.layout.height;
  figure.layout.height = heightOf(host);
  await Plotly.react(host, figure.data, figure.layout, { ...config, modeBarButtonsToAdd: BUTTONS });
  listen(host);
  host.dataset.drawn = Number(host.dataset.drawn ?? 0) + 1;
  performance.mark("fedlens-drawn");
  hoverAgain(host);
}

async function draw(host, text) {
  const { url, alt, config, figure } = JSON.parse(text);
  host.setAttribute("aria-label", alt);
  const family = getComputedStyle(host).fontFamily;
  figure.layout.font = { ...figure.layout.font, family };
  makeRoom(figure, family);
  host.style.minHeight = `${figure.layout.height}px`; // the final height, before anything is drawn
  try {
    const Plotly = await library(url);
    while (host._dragging) await new Promise((go) => setTimeout(go, 100)); // the reader is zooming
    await inTurn(() => react(Plotly, host, figure, config, text));
  } catch (error) {
    if (host.fedlensText !== text) return; // a newer one is about to be drawn
    host.fedlensText = ""; // the next message tries again
    host.fedlensFailed = true;
    window.Plotly?.purge(host); // an earlier chart gives way to the text: the next one begins anew
    host.textContent = `This chart cannot be drawn (${error.message}): reload the page, or choose "Show as table" where it is offered.`;
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  const host = parentElement.querySelector(".fl-chart");
  host.fedlensTell = setTriggerValue;
  const text = new TextDecoder().decode(data);
  // also called for a call that a newer one overtook: then the chart is still there
  const stop = () => host.isConnected || window.Plotly?.purge(host);
  if (host.fedlensText === text) return stop; // nothing new: nothing is redrawn
  if (host.fedlensText === undefined) {
    followPointer(host);
    followLegend(host);
    followSize(host);
    followScreen(host);
  }
  host.fedlensText = text;
  draw(host, text);
  return stop;
}
