// The page: the reports that dtr_fx/inspect/html.py packs, which of them is shown, and what is lit in all views of it.

const HINT = "Point at a drop, here or in the picture, to light up where it is computed again; Enter or a click goes there.";

async function start() {
  const packed = document.getElementById("data").textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const json = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const reports = await new Response(json).json();
  reports.forEach(connect);
  const views = new Views();
  const traces = [...document.querySelectorAll("#traces button")];

  const show = (number) => {
    for (const [id, text] of Object.entries(reports[number].texts)) document.getElementById(id).textContent = text;
    traces.forEach((button, i) => button.setAttribute("aria-pressed", i === number));
    views.show(reports[number]);
  };
  traces.forEach((button, i) => button.addEventListener("click", () => show(i)));
  show(0);
}

// Tells steps where they are, and ties each drop to the recompute that undoes it.
function connect(report) {
  report.events = report.rows.flatMap((row) => row.fold ?? (row.kind ? [row] : []));
  for (const storage of report.storages) storage.events = [];
  const dropped = new Map();
  let operators = 0;
  for (const event of report.events) {
    // A drop stands between two operators, right after the last that ran.
    event.at = event.kind === "drop" ? operators - 0.5 : operators++;
    event.pairs = [];
    for (const number of event.storages) {
      report.storages[number].events.push(event);
      const drop = dropped.get(number);
      if (event.kind === "drop") {
        dropped.set(number, event);
      } else if (event.kind === "recompute" && drop) {
        dropped.delete(number);
        drop.pairs.push(event);
        event.pairs.push(drop);
      }
    }
  }
}

// What happened to a value that was dropped or made again.
function sentence(event, report) {
  const name = event.storages.length === 1 ? report.storages[event.storages[0]].name : event.origin;
  const [drop, again] = event.kind === "drop" ? [event, event.pairs[0]] : [event.pairs[0], event];
  if (event.kind === "compute") {
    const place = event.source ? ` · ${event.source}` : "";
    return `${event.origin}: computed in ${event.seconds}, ${event.live} live${place}`;
  }
  const parts = [];
  if (drop) parts.push(`${drop.bytes} dropped (${drop.why})`);
  if (again) parts.push(`made again ${again.why} in ${again.seconds}`);
  if (drop && again) parts.push(`away for ${formatCount(Math.round(again.at - drop.at - 0.5), "operator")}`);
  const source = drop?.source || again?.source;
  return `${name}: ${parts.join(", ")}${source ? ` · ${source}` : ""}`;
}

start();
