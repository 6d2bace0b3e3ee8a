// Two habits of Streamlit's window that mislead. A page that completes its own address would make a second entry in the
// browser's history, so that Back needs two presses; and the message of a lost connection does not say what becomes of runs.

const LOST = /Are you connected to the internet\?|Is Streamlit still running\?/;
const SAID = "FedLens is not responding. It may have been stopped, or the connection was lost. Runs continue in their own " +
  "processes, and all recorded results are safe. Start FedLens again with the command below, or reload this page.";

function keepOneEntryPerVisit() {
  const push = history.pushState.bind(history);
  let touched = false; // whether the reader has done anything since the page was opened
  history.pushState = (state, unused, url) => {
    const next = new URL(url ?? location.href, location.href);
    if (next.pathname !== location.pathname) touched = false;
    else if (!touched) return history.replaceState(state, unused, url);
    return push(state, unused, url);
  };
  for (const event of ["pointerdown", "keydown"]) addEventListener(event, () => (touched = true), true);
  addEventListener("popstate", () => (touched = false));
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

export default function () {
  if (window.fedlensWindow) return;
  window.fedlensWindow = true;
  keepOneEntryPerVisit();
  new MutationObserver(sayThatRunsGoOn).observe(document.body, { childList: true, subtree: true });
}
