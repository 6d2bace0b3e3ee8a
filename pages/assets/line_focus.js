// Brings out one line of a chart: the one under the pointer, or the one whose name in the legend is under it. The others
// fade. Charts come and go with every run of the page, so the document listens for all of them, once.

const FADED = "0.12";
const isLine = (trace) => trace.type === "scatter" && (trace.mode ?? "").includes("lines");
const keyOf = (trace) => trace.legendgroup || `trace ${trace.index}`;
const traceOf = (element) => element.__data__?.[0]?.trace;

function focus(chart, trace) {
  const key = trace && keyOf(trace);
  for (const element of chart.querySelectorAll(".scatterlayer .trace")) {
    const own = traceOf(element);
    element.style.opacity = !key || !own || keyOf(own) === key ? "" : FADED;
  }
  chart.dataset.fedlensFocus = key ?? "";
}

// A hover text for all lines has a point of each; only a single point says which line is meant.
function follow(chart) {
  if (!chart._ev || chart.fedlensFollowed === chart._ev) return;
  chart.fedlensFollowed = chart._ev; // a chart that is drawn anew has another one
  chart.on("plotly_hover", ({ points }) => {
    if (points.length === 1 && isLine(points[0].fullData)) focus(chart, points[0].fullData);
  });
  chart.on("plotly_unhover", () => focus(chart));
}

function enter(event) {
  const chart = event.target.closest?.(".js-plotly-plot");
  if (!chart) return;
  follow(chart);
  const name = event.target.closest(".legend .traces");
  const trace = name && traceOf(name);
  if (trace && isLine(trace)) focus(chart, trace);
  else if (chart.dataset.fedlensFocus && chart.fedlensInLegend) focus(chart);
  chart.fedlensInLegend = Boolean(trace);
}

function leave(event) {
  const chart = event.target.closest?.(".js-plotly-plot");
  if (chart?.dataset.fedlensFocus && !chart.contains(event.relatedTarget)) focus(chart);
}

export default function () {
  if (document.fedlensLineFocus) return;
  document.fedlensLineFocus = true;
  document.addEventListener("mouseover", enter);
  document.addEventListener("mouseout", leave);
}
