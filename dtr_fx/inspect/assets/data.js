// The reports that dtr_fx/inspect/html.py packs; what is shown of a number is its text there.

async function readReports(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const json = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const reports = await new Response(json).json();
  reports.forEach(connect);
  return reports;
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

function formatCount(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
