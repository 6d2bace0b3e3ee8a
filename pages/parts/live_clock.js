// The clock and its listener stand in two fragments: a number that has grown in the one has the other run again.

export default function ({ data, parentElement, setTriggerValue }) {
  if (data.news === null) {
    window.fedlensDraw = () => setTriggerValue("draw", true);
    return;
  }
  const before = parentElement.fedlensNews;
  parentElement.fedlensNews = data.news;
  if (before !== undefined && data.news > before) window.fedlensDraw?.(); // if nobody listens yet: the next tick
}
