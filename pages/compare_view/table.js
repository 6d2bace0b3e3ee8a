// Tells the server which heading of a summary was clicked.

export default function ({ parentElement, setTriggerValue }) {
  const click = (event) => {
    const heading = event.target.closest?.(".fl-table button[data-sort]");
    if (heading) setTriggerValue("sorted", heading.dataset.sort);
  };

  parentElement.fedlensStop?.(); // one listener at a time
  const stop = () => document.removeEventListener("click", click);
  parentElement.fedlensStop = stop;
  document.addEventListener("click", click);
  parentElement.querySelector("i").dataset.listening = "";
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
