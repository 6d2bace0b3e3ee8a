// Tells the server when the window crosses the width at which panels stand below each other, and when the reader
// changes between light and dark: charts have their colours from the server. Streamlit calls this with each change.

export default function ({ data, parentElement, setStateValue }) {
  const { width, narrow, dark } = data;
  const query = window.matchMedia(`(max-width: ${width}px)`);
  const tell = () => setStateValue("narrow", query.matches);

  parentElement.fedlensStop?.(); // one listener at a time
  const stop = () => query.removeEventListener("change", tell);
  parentElement.fedlensStop = stop;
  query.addEventListener("change", tell);
  if (query.matches !== narrow) tell();
  const seen = getComputedStyle(document.querySelector("[data-testid=stApp]")).colorScheme === "dark";
  if (seen !== dark) setStateValue("dark", seen);
  parentElement.querySelector("i").dataset.drawn = dark ? "dark" : "light";
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
