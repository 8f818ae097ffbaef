// The reports out of the columns that dtr_fx/inspect/columns.py packs, and how numbers are shown.

function readReports(packed) {
  const texts = (column) => integers(column).map((at) => packed.table[at]);
  return packed.reports.map((report) => {
    const events = readEvents(report.events, texts);
    return {
      ...report,
      kinds: packed.kinds,
      events,
      before: readPoints(report.before, packed.kinds, texts),
      after: readPoints(report.after, packed.kinds, texts),
      storages: readStorages(report.storages, events, texts),
    };
  });
}

function integers(differences) {
  let value = 0;
  return differences.map((difference) => (value += difference));
}

function readEvents(columns, texts) {
  const [kind, name, origin, phase, cost, why, source] = [
    "kind", "name", "origin", "phase", "cost", "why", "source",
  ].map((key) => texts(columns[key]));
  const nbytes = integers(columns.nbytes);
  const live = integers(columns.live);
  const storages = integers(columns.storages);
  let first = 0;
  let operators = 0;
  return integers(columns.count).map((count, i) => {
    const made = storages.slice(first, (first += count));
    // A drop stands between two operators, right after the last that ran.
    const at = kind[i] === "drop" ? operators - 0.5 : operators++;
    return {
      kind: kind[i], name: name[i], origin: origin[i] || name[i], phase: phase[i], nbytes: nbytes[i],
      cost: cost[i], live: live[i], why: why[i], source: source[i],
      storages: made, at, pairs: [],
    };
  }).filter((event) => event.kind !== "banish");
}

function readPoints(columns, kinds, texts) {
  const parts = kinds.map((kind) => integers(columns[kind]));
  const name = texts(columns.name);
  const live = name.map((_, i) => parts.reduce((sum, part) => sum + part[i], 0));
  return { name, live, parts };
}

// Also ties each drop to the recompute that undoes it.
function readStorages(columns, events, texts) {
  const [name, kind, cost] = ["name", "kind", "recompute_cost"].map((key) => texts(columns[key]));
  const [nbytes, drops, recomputes] = ["nbytes", "drops", "recomputes"].map((key) => integers(columns[key]));
  const storages = name.map((_, i) => ({
    name: name[i], kind: kind[i], nbytes: nbytes[i], drops: drops[i], recomputes: recomputes[i], cost: cost[i], events: [],
  }));
  const dropped = new Map();
  for (const event of events) {
    for (const number of event.storages) {
      storages[number].events.push(event);
      if (event.kind === "drop") {
        dropped.set(number, event);
      } else if (event.kind === "recompute" && dropped.has(number)) {
        const drop = dropped.get(number);
        dropped.delete(number);
        drop.pairs.push(event);
        event.pairs.push(drop);
      }
    }
  }
  return storages;
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
