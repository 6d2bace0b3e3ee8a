// Habits of Streamlit's window that mislead. A page that completes its own address would make a second entry in the
// browser's history, so that Back needs two presses; the message of a lost connection does not say what becomes of runs;
// and charts keep the window's width on paper, where what is wider is cut off.

const LOST = /Are you connected to the internet\?|Is Streamlit still running\?/;
const SAID = "FedLens is not responding. It may have been stopped, or the connection was lost. Runs continue in their own " +
  "processes, and all recorded results are safe. Start FedLens again with the command below, or reload this page.";

function keepOneEntryPerVisit() {
  const push = history.pushState.bind(history);
  let touched = false; // whether the reader has done anything since the page was opened
  let leaving = false; // whether the last entry came after the reader's last click or key, with the page's own path
  history.pushState = (state, unused, url) => {
    const stays = new URL(url ?? location.href, location.href).pathname === location.pathname;
    // Before it opens another page, Streamlit pushes the present one without its query, or with the other's: Back would
    // show a page that nobody has seen, such as another experiment. The other page takes the place of that entry.
    const replaces = stays ? !touched : leaving;
    if (!stays) touched = false;
    leaving = stays && touched;
    return (replaces ? history.replaceState.bind(history) : push)(state, unused, url);
  };
  for (const event of ["pointerdown", "keydown"]) addEventListener(event, () => ((touched = true), (leaving = false)), true);
  addEventListener("popstate", () => (touched = leaving = false));
}

// Streamlit replaces the present entry when another tab is opened, and does not open one when the reader goes back.
function keepOneEntryPerTab() {
  const push = history.pushState.bind(history);
  const replace = history.replaceState.bind(history);
  const tabOf = (url) => url.searchParams.get("tab") ?? url.searchParams.get("run_tab");
  history.replaceState = (state, unused, url) => {
    const now = new URL(location.href);
    const then = new URL(url ?? now, now);
    const moves = then.pathname === now.pathname && tabOf(then) !== tabOf(now);
    return (moves ? push : replace)(state, unused, url);
  };
  addEventListener("popstate", () => {
    const tabs = [...document.querySelectorAll(".stTabs [role=tab]")];
    const name = tabOf(new URL(location.href));
    (tabs.find((tab) => tab.innerText.trim() === name) ?? tabs[0])?.click();
  });
}

function sayThatRunsGoOn() {
  for (const dialog of document.querySelectorAll("[role=dialog]")) {
    const texts = document.createTreeWalker(dialog, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      if (LOST.test(texts.currentNode.data)) texts.currentNode.data = SAID;
      else if (texts.currentNode.data === "streamlit run yourscript.py") texts.currentNode.data = "fedlens app";
    }
  }
}

const PAPER = 717; // pixels between the browser's own margins on A4, the narrower of the usual papers

function fitToPaper() {
  const main = document.querySelector(".stMainBlockContainer > .stVerticalBlock");
  document.body.style.setProperty("--fl-width", `${main.clientWidth}px`);
  document.body.style.setProperty("--fl-zoom", Math.min(1, PAPER / main.clientWidth));
}

export default function () {
  if (window.fedlensWindow) return;
  window.fedlensWindow = true;
  keepOneEntryPerTab();
  keepOneEntryPerVisit();
  addEventListener("beforeprint", fitToPaper);
  new MutationObserver(sayThatRunsGoOn).observe(document.body, { childList: true, subtree: true });
}
