// When the ticking part of the Live page is drawn again: a rerun of it, even one that changes nothing, has Streamlit
// look at every widget of the page, so the browser first asks a small address whether there is anything new.
// Streamlit calls this function for every message and at times between; what it returns is called at the end, and for
// a call that a newer one overtook, once the newer one has begun.

export default function ({ data, parentElement, setTriggerValue }) {
  const { address, seen, every, longest } = data;
  let drawn = Date.now();
  let timer;

  function stop() {
    clearTimeout(timer);
    timer = undefined;
  }

  function wait() {
    timer = setTimeout(look, 1000 * every);
  }

  function rerun() {
    drawn = Date.now();
    setTriggerValue("news", drawn);
    wait(); // a click elsewhere may swallow it
  }

  async function look() {
    if (document.hidden) return wait(); // nobody looks
    if (longest !== null && Date.now() - drawn >= 1000 * longest) return rerun();
    const mine = timer;
    let news = false;
    try {
      const answer = await fetch(address, { cache: "no-store" });
      news = !answer.ok || (await answer.text()) !== seen; // no answer to the question: look by drawing
    } catch {
      // the server is gone, which Streamlit says; it may come back
    }
    if (mine !== timer) return undefined; // a message came meanwhile
    return news ? rerun() : wait();
  }

  parentElement.fedlensStop?.(); // one clock at a time
  parentElement.fedlensStop = stop;
  wait();
  return stop; // itself alone: it is called late where a newer call came soon, which goes on
}
