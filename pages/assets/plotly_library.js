// plotly.js, once in a window and however often it is asked for.

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

// A chart that needs it says so where it cannot be loaded.
function fetchLibrary(url) {
  library(url).catch(() => {});
}

// On a page without charts, for the pages that the reader opens next.
function fetchLibraryWhenIdle(url) {
  const idle = window.requestIdleCallback ?? setTimeout;
  setTimeout(() => idle(() => fetchLibrary(url)), 1000);
}
