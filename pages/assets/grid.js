// A grid of buttons. Its HTML is replaced only when it has changed, and the focus and the place of each scrolled part
// stay. One button of a table can be reached with Tab; the arrow keys lead to the others.

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function beside(button, [down, right]) {
  const cell = button.closest("td, th");
  let row = cell.parentElement;
  if (right) {
    for (let next = cell; (next = right > 0 ? next.nextElementSibling : next.previousElementSibling); ) {
      const found = next.querySelector("button");
      if (found) return found;
    }
    return null;
  }
  while ((row = down > 0 ? row.nextElementSibling : row.previousElementSibling)) {
    const found = row.querySelector(`[data-column="${cell.dataset.column}"] button`);
    if (found) return found;
  }
  return null;
}

function makeReachable(table, button) {
  for (const other of table.querySelectorAll("button[tabindex='0']")) other.tabIndex = -1;
  button.tabIndex = 0;
}

// Row headings stay in view, those of inner levels beside the outer ones.
function keepHeadings(table) {
  const place = () => {
    const [first] = table.tBodies[0].rows;
    let left = 0;
    for (const head of [...first.cells].filter((cell) => cell.tagName === "TH")) {
      table.style.setProperty(`--left-${head.dataset.level}`, `${left}px`);
      left += head.offsetWidth;
    }
  };
  place();
  new ResizeObserver(place).observe(table);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const place = parentElement.querySelector(".grid");
  if (place.fedlensHtml !== data.html) {
    const focused = parentElement.activeElement?.dataset?.choice ?? place.getRootNode().activeElement?.dataset?.choice;
    const scrolled = [...place.querySelectorAll(".scroll")].map((part) => [part.scrollLeft, part.scrollTop]);
    place.innerHTML = data.html;
    place.fedlensHtml = data.html;
    place.querySelectorAll(".scroll").forEach((part, i) => {
      if (scrolled[i]) [part.scrollLeft, part.scrollTop] = scrolled[i];
    });
    for (const table of place.querySelectorAll("table")) {
      if (table.tBodies.length) keepHeadings(table);
      const first = table.querySelector("button");
      if (first) first.tabIndex = 0;
    }
    const again = focused && place.querySelector(`[data-choice="${CSS.escape(focused)}"]`);
    if (again) {
      if (again.closest("table")) makeReachable(again.closest("table"), again);
      again.focus({ preventScroll: true });
    }
  }
  place.onclick = (event) => {
    const button = event.target.closest("button[data-choice]");
    if (button) setTriggerValue("chosen", { choice: button.dataset.choice, at: Date.now() });
  };
  place.onkeydown = (event) => {
    const button = event.target.closest("td button, th button");
    const step = STEPS[event.key];
    if (!button || !step || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = beside(button, step);
    event.preventDefault();
    if (next) {
      makeReachable(button.closest("table"), next);
      next.focus();
    }
  };
}
