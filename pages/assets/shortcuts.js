// Shortcuts of the whole app: "g" and a letter open a page, "/" goes to the search, "?" opens the list. A field that has the
// focus keeps its keys, and so does a dialog. Streamlit calls this function at every run of the page; the window listens once.

const SEQUENCE = 1500; // milliseconds between the two keys
const FIELDS = "input, textarea, select, [contenteditable]:not([contenteditable=false]), [role=combobox], " +
  "[role=listbox], [role=menu], [role=slider], [role=spinbutton], [role=textbox], [role=grid]";
const OFF = "fedlens-shortcuts-off"; // a person who dictates would press single keys unawares (WCAG 2.1.4)
const SEARCH = ".st-key-find input, .st-key-where input"; // Experiments; Compare and Leaderboard
const state = { pages: [], since: -Infinity };

function open(path) {
  // a click on the navigation keeps the session, which a load of the page would end
  const links = [...document.querySelectorAll("[data-testid=stTopNavLink], [data-testid=stSidebarNavLink]")];
  const link = links.find((a) => new URL(a.href).pathname.replace(/\/$/, "") === path.replace(/\/$/, ""));
  if (link) link.click();
  else location.assign(path);
}

function row(keys, text) {
  return `<tr><th scope="row">${keys.map((key) => `<kbd>${key}</kbd>`).join(" then ")}</th><td>${text}</td></tr>`;
}

function showHelp() {
  const rows = state.pages.map((page) => row(["g", page.key], page.title));
  rows.push(row(["/"], "Search or filter, on a page that has one"));
  rows.push(row(["?"], "This list"), row(["Ctrl /"], "This list, always"), row(["Esc"], "Close"));
  const dialog = document.createElement("dialog");
  dialog.className = "fl-keys";
  dialog.setAttribute("aria-labelledby", "fl-keys-title");
  dialog.innerHTML = `
    <h2 id="fl-keys-title">Keyboard shortcuts</h2>
    <table aria-labelledby="fl-keys-title"><tbody>${rows.join("")}</tbody></table>
    <p>Shortcuts are off while a field has the focus.</p>
    <label><input type="checkbox"> Use shortcuts of single keys in this browser</label>
    <button type="button" autofocus>Close</button>`;
  const app = getComputedStyle(document.querySelector(".stApp"));
  Object.assign(dialog.style, { background: app.backgroundColor, color: app.color, fontFamily: app.fontFamily });
  const box = dialog.querySelector("input");
  box.checked = localStorage.getItem(OFF) === null;
  box.addEventListener("change", () => {
    if (box.checked) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "1");
  });
  dialog.querySelector("button").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal(); // keeps the focus inside, closes on Escape and gives the focus back
}

function press(event) {
  const begun = event.timeStamp - state.since < SEQUENCE;
  if (["Shift", "CapsLock"].includes(event.key)) return;
  state.since = -Infinity;
  if (event.altKey || event.isComposing || event.repeat) return;
  if (document.querySelector("dialog[open], [role=dialog]")) return;
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "/") showHelp(), event.preventDefault();
    return;
  }
  const target = event.composedPath()[0];
  // the browser may move the focus out of the list's checkbox only a frame after the list was closed
  const inField = target.closest?.(FIELDS) && !target.closest(".fl-keys");
  if (inField || localStorage.getItem(OFF) !== null) return;
  const search = document.querySelector(SEARCH);
  const page = begun && state.pages.find(({ key }) => key === event.key.toLowerCase());
  if (page) open(page.path);
  else if (event.key === "?") showHelp();
  else if (event.key === "/" && search) search.focus();
  else if (event.key === "g") state.since = event.timeStamp;
  else return;
  event.preventDefault();
  event.stopImmediatePropagation(); // "c" alone is Streamlit's
}

export default function ({ data }) {
  window.fedlensShortcuts ??= state;
  window.fedlensShortcuts.pages = data.pages;
  if (window.fedlensShortcuts !== state || state.listening) return;
  state.listening = true;
  window.addEventListener("keydown", press, true);
}
