// Tells the server when the window crosses the width at which panels stand below each other.

export default function ({ data, parentElement, setStateValue }) {
  const { width, narrow } = data;
  const query = window.matchMedia(`(max-width: ${width}px)`);
  const tell = () => setStateValue("narrow", query.matches);

  parentElement.fedlensStop?.(); // one listener at a time
  const stop = () => query.removeEventListener("change", tell);
  parentElement.fedlensStop = stop;
  query.addEventListener("change", tell);
  if (query.matches !== narrow) tell();
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
