// The tab's title says how far an experiment is: "3/6 done, running", in the end "done". The browser notifies at the end if
// the reader has clicked for it; permission is never asked for otherwise. Streamlit calls this function for every message.

const ASKED = "fedlens-notify"; // kept while the tab is open
const PAGE_TITLE = "Live - FedLens"; // Streamlit's own title of this page

function titleOf({ states, total }) {
  const ended = total - (states.queued ?? 0) - (states.running ?? 0) - (states.stopping ?? 0);
  if (ended < total) return `${ended}/${total} done, ${states.running || states.stopping ? "running" : "queued"}`;
  return states.done === total ? "done" : inWords(states);
}

function inWords(states) {
  return Object.entries(states)
    .map(([state, count]) => `${count} ${state}`)
    .join(", ");
}

export default function ({ data, parentElement }) {
  const { address, every, experiment, name, going } = data;
  const button = parentElement.querySelector("button");
  const possible = "Notification" in window && window.isSecureContext;
  let timer;
  let title;
  const before = parentElement.fedlensSeen; // a run of the page may come between the end and the look at it
  let ended = before?.experiment === experiment ? before.ended : !going;

  function showButton() {
    const asked = sessionStorage.getItem(ASKED) === "yes" && possible && Notification.permission === "granted";
    button.hidden = !possible || ended;
    button.disabled = asked || (possible && Notification.permission === "denied");
    button.textContent = asked ? "You will be notified" : button.disabled ? "Notifications are blocked" : "Notify me";
    button.title = button.disabled && !asked ? "Allow them for this address in the browser's settings" : "";
  }

  async function ask() {
    if ((await Notification.requestPermission()) === "granted") sessionStorage.setItem(ASKED, "yes");
    showButton();
  }

  function keepTitle() {
    // Every run of the page sets the page's own title again. The next page's title also comes while this element is
    // still there, and stays.
    if (!title || ![PAGE_TITLE, window.fedlensTitle].includes(document.title)) return;
    window.fedlensTitle = title;
    if (document.title !== title) document.title = title;
  }

  function tell(states) {
    if (sessionStorage.getItem(ASKED) !== "yes" || !possible || Notification.permission !== "granted") return;
    const shown = new Notification(name, { body: inWords(states), tag: `fedlens-${experiment}` });
    shown.onclick = () => window.focus();
  }

  async function look() {
    try {
      const answer = await fetch(address, { cache: "no-store" });
      const counts = answer.ok ? await answer.json() : null;
      if (counts && timer !== null) {
        // not ended while it waited: a newer call would tell of the same end again
        title = `${titleOf(counts)} - FedLens`;
        keepTitle();
        const now = !["queued", "running", "stopping"].some((state) => counts.states[state]);
        if (now && !ended) tell(counts.states);
        ended = now;
        parentElement.fedlensSeen = { experiment, ended };
        showButton();
      }
    } catch {
      // the server is gone, which Streamlit says; it may come back
    }
    if (timer !== null && !ended) timer = setTimeout(look, 1000 * every);
  }

  parentElement.fedlensStop?.(); // one clock at a time
  const titles = new MutationObserver(keepTitle);
  const element = document.querySelector("title");
  if (element) titles.observe(element, { childList: true });
  const stop = () => {
    clearTimeout(timer);
    timer = null;
    titles.disconnect();
  };
  parentElement.fedlensStop = stop;
  button.onclick = ask;
  showButton();
  look();
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
