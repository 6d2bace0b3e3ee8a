"use strict";
(() => {
  // shows at once what a pointer is on: an SVG's own titles appear late, and large matrices have none
  const box = document.body.appendChild(document.createElement("div"));
  box.id = "tip";
  box.hidden = true;
  const names = new WeakMap();
  document.querySelectorAll("figure svg title").forEach((title) => {
    names.set(title.parentNode, title.textContent);
    title.remove();
  });
  const cellText = (image, event) => {
    const table = image.closest("figure").querySelectorAll("details table")[Number(image.dataset.table)];
    const place = image.getBoundingClientRect();
    const share = (at, low, size, count) => Math.min(count - 1, Math.floor(((at - low) / size) * count));
    const rows = table.tBodies[0].rows, heads = table.tHead.rows[0].cells;
    const row = rows[share(event.clientY, place.top, place.height, rows.length)];
    const column = 1 + share(event.clientX, place.left, place.width, heads.length - 1);
    return `${row.cells[0].textContent}, ${heads[column].textContent}\n${row.cells[column].textContent}`;
  };
  const show = (event) => {
    const at = event.target, svg = at.closest?.("figure svg");
    const line = svg && at.dataset.line;
    document.querySelectorAll("svg.dimmed").forEach((other) => other.classList.remove("dimmed"));
    if (line !== undefined && line !== null && svg) {
      svg.classList.add("dimmed");
      svg.querySelectorAll("[data-line]").forEach((e) => e.classList.toggle("lit", e.dataset.line === line));
    }
    const text = svg && (at.dataset.table ? cellText(at, event) : names.get(at));
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 4);
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${event.clientY + 18 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 8 : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { box.hidden = true; });
})();
