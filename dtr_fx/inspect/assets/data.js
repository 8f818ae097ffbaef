// The reports that dtr_fx/inspect/html.py packs, and how numbers are shown.

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

// As units.py does it, digit for digit.

function formatBytes(nbytes) {
  let size = Math.abs(nbytes);
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1023.5) break;
    size /= 1024;
    unit = larger;
  }
  return `${nbytes < 0 ? "-" : ""}${unit === "B" ? fixed(size, 0) : threeDigits(size)} ${unit}`;
}

function formatSeconds(seconds) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (seconds >= 0.9995 * scale) return `${threeDigits(seconds / scale)} ${unit}`;
  }
  return `${threeDigits(seconds * 1e9)} ns`;
}

function formatCount(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function threeDigits(value) {
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// Ties go to the even digit, as in Python; toFixed rounds them up.
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const isTie = Number.isInteger(value * 2 ** (digits + 1)) && scaled % 1 === 0.5;
  return isTie && Math.floor(scaled) % 2 === 0
    ? (Math.floor(scaled) / 10 ** digits).toFixed(digits)
    : value.toFixed(digits);
}
