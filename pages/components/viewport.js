// Tells the server when the window crosses the width at which panels stand below each other.

export default function ({ data, parentElement, setStateValue }) {
  const { width, narrow } = data;
  const query = window.matchMedia(`(max-width: ${width}px)`);
  const tell = () => setStateValue("narrow", query.matches);

  parentElement.fedlensStop?.(); // one listener at a time
  parentElement.fedlensStop = () => query.removeEventListener("change", tell);
  query.addEventListener("change", tell);
  if (query.matches !== narrow) tell();
  return () => parentElement.fedlensStop();
}
