// The page: which report is shown, and what is lit in all of its views.

const HINT = "Point at a drop, here or in the picture, to light up where it is computed again; Enter or a click goes there.";

async function start() {
  const reports = await readReports(document.getElementById("data").textContent);
  const status = document.getElementById("status");
  let shown;

  const light = (events, event = events[0]) => {
    chart.setLit(events);
    diff.setLit(events);
    status.textContent = event ? sentence(event, shown) : HINT;
  };
  const chart = new Chart(document, { light, goTo: (event) => diff.goTo(event) });
  const diff = new Diff(document, { light });
  const storages = new Storages(document, { light });
  const traces = [...document.querySelectorAll("#traces button")];

  const show = (number) => {
    shown = reports[number];
    for (const [id, text] of [
      ["verdict", shown.summary], ["circumstances", shown.circumstances],
      ["peak-before", shown.peakBefore], ["peak-after", shown.peakAfter],
    ]) {
      document.getElementById(id).textContent = text;
    }
    traces.forEach((button, i) => button.setAttribute("aria-pressed", i === number));
    chart.show(shown);
    diff.show(shown);
    storages.show(shown);
    light([]);
  };
  traces.forEach((button, i) => button.addEventListener("click", () => show(i)));
  show(0);
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
