// Tells the server when the window crosses a width at which panels stand differently, and when the reader changes between
// light and dark: charts have their colours from the server. Streamlit calls this with each change.

export default function ({ data, parentElement, setStateValue }) {
  const { widths, dark } = data;
  parentElement.fedlensStop?.(); // one set of listeners at a time
  const stops = Object.entries(widths).map(([name, [text, known]]) => {
    const query = window.matchMedia(text);
    const tell = () => setStateValue(name, query.matches);
    query.addEventListener("change", tell);
    if (query.matches !== known) tell();
    return () => query.removeEventListener("change", tell);
  });
  const stop = () => stops.forEach((end) => end());
  parentElement.fedlensStop = stop;
  const seen = getComputedStyle(document.querySelector("[data-testid=stApp]")).colorScheme === "dark";
  if (seen !== dark) setStateValue("dark", seen);
  parentElement.querySelector("i").dataset.drawn = dark ? "dark" : "light";
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
