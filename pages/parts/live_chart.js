// A chart that is updated in place: with the layout's uirevision, Plotly.react keeps zoom and pan, and the label
// under the pointer is shown again with its new value. Streamlit calls this function for every message.

const CONFIG = {
  displaylogo: false,
  showSendToCloud: false, // plotly.js offers to upload charts unless told not to
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
};

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
    // text and controls first: reading plotly.js keeps the browser busy, fetching it does not
    document.head.append(Object.assign(document.createElement("link"), { rel: "preload", as: "script", href: url }));
    requestIdleCallback(() => document.head.append(script), { timeout: 500 });
  });
  return window.fedlensPlotly;
}

function followPointer(host) {
  const remember = (event) => (host.fedlensPointer = { bubbles: true, clientX: event.clientX, clientY: event.clientY });
  host.addEventListener("mousemove", remember, true);
  host.addEventListener("mouseleave", () => (host.fedlensPointer = null));
}

// Plotly keeps the label with its old value until the pointer moves.
function hoverAgain(host) {
  const pointer = host.fedlensPointer;
  const under = pointer && document.elementFromPoint(pointer.clientX, pointer.clientY);
  if (under && host.contains(under)) under.dispatchEvent(new MouseEvent("mousemove", pointer));
}

async function draw(host, text) {
  const { url, alt, figure } = JSON.parse(text);
  host.setAttribute("aria-label", alt);
  host.style.minHeight = `${figure.layout.height}px`; // the final height, before anything is drawn
  try {
    const Plotly = await library(url);
    while (host._dragging) await new Promise((go) => setTimeout(go, 100)); // the reader is zooming
    if (host.fedlensText !== text) return; // a newer one came meanwhile
    if (host.fedlensFailed) host.replaceChildren();
    host.fedlensFailed = false;
    figure.layout.font = { ...figure.layout.font, family: getComputedStyle(host).fontFamily };
    await Plotly.react(host, figure.data, figure.layout, CONFIG);
    host.dataset.drawn = Number(host.dataset.drawn ?? 0) + 1;
    hoverAgain(host);
  } catch (error) {
    host.fedlensText = ""; // the next message tries again
    host.fedlensFailed = true;
    host.textContent = `This chart cannot be drawn (${error.message}): load the page again, or choose "Show as table".`;
  }
}

export default function ({ data, parentElement }) {
  const host = parentElement.querySelector(".fl-chart");
  const text = new TextDecoder().decode(data);
  if (host.fedlensText === text) return undefined; // nothing new: nothing is redrawn
  if (host.fedlensText === undefined) followPointer(host);
  host.fedlensText = text;
  draw(host, text);
  return () => window.Plotly?.purge(host);
}
