// Tells the server which heading of a summary was clicked.

export default function ({ parentElement, setTriggerValue }) {
  const click = (event) => {
    const heading = event.target.closest?.(".fl-table button[data-sort]");
    if (heading) setTriggerValue("sorted", heading.dataset.sort);
  };

  parentElement.fedlensStop?.(); // one listener at a time
  parentElement.fedlensStop = () => document.removeEventListener("click", click);
  document.addEventListener("click", click);
  return () => parentElement.fedlensStop();
}
