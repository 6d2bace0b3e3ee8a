"use strict";
(() => {
  const options = { responsive: true, displaylogo: false, displayModeBar: "hover" };
  const draw = (chart) => {
    if (chart.dataset.drawn) return;
    chart.dataset.drawn = "yes";
    const figure = JSON.parse(document.getElementById(chart.dataset.figure).textContent);
    Plotly.newPlot(chart, figure.data, { ...figure.layout, autosize: true }, options);
  };
  const charts = document.querySelectorAll(".chart");
  // a chart is drawn when it comes near the window: a report may hold a hundred of them
  const seen = new IntersectionObserver(
    (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => draw(e.target)),
    { rootMargin: "800px" },
  );
  charts.forEach((chart) => seen.observe(chart));
  window.addEventListener("beforeprint", () => charts.forEach(draw));
})();
