// Tells the page which cell of a heatmap was clicked. The chart may be drawn anew by every run of the page, so the
// document listens, and a chart that is under the pointer is followed from then on.

export default function ({ data, parentElement, setTriggerValue }) {
  const selector = `.st-key-${data.chart} .js-plotly-plot`;

  function panelOf(chart, trace) {
    return chart._fullData.filter((t) => t.type === "heatmap" && t.index < trace.index).length;
  }

  function clicked(chart, { points }) {
    const point = points.find((p) => p.fullData.type === "heatmap");
    if (!point) return;
    setTriggerValue("cell", { panel: panelOf(chart, point.fullData), row: point.y, column: point.x, at: Date.now() });
  }

  function follow(event) {
    const chart = event.target.closest?.(selector);
    if (!chart?._ev || chart.fedlensCells === chart._ev) return;
    chart.fedlensCells = chart._ev; // a chart that is drawn anew has another one
    chart.on("plotly_click", (what) => clicked(chart, what));
  }

  parentElement.fedlensStop?.();
  const stop = () => document.removeEventListener("mouseover", follow);
  parentElement.fedlensStop = stop;
  document.addEventListener("mouseover", follow);
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
