// plotly.js, once in a page and however often it is asked for.

function library(url) {
  window.fedlensPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      script.remove();
      window.fedlensPlotly = undefined; // the next message tries again
      reject(new Error(`${url} could not be loaded`));
    };
    document.head.append(script);
  });
  return window.fedlensPlotly;
}
