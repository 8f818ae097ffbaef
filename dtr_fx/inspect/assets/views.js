// All views of a plan, and what ties them together: what is lit, searched for and marked is so in each of them.

class Views {
  constructor() {
    this.status = document.getElementById("status");
    const light = (events, event) => this.light(events, event);
    this.search = new Search((found) => this.filter(found));
    this.diff = new Diff({
      light,
      see: (seen) => this.chart?.setSeen(seen),
      unfind: () => this.search.clear(),
      go: (event) => this.chart.zoom.center(event.at),
    });
    this.chart = new Chart(light, (event) => this.diff.goTo(event));
    this.modules = new Modules((events, name) => this.mark(events, name));
    this.storages = new Storages(light);
    this.addresses = new Addresses();
    const lens = document.getElementById("lens");
    const tell = () => document.documentElement.style.setProperty("--lens", `${lens.offsetHeight}px`);
    new ResizeObserver(tell).observe(lens);
  }

  // Shows a plan; what is searched for, zoomed to and marked stays as it is.
  show(report) {
    this.report = report;
    prepare(report);
    for (const view of [this.chart, this.diff, this.storages, this.modules, this.addresses]) view.show(report);
    this.search.of(report); // which filters anew where something is looked for
    showTable(report);
    this.light([]);
  }

  light(events, event = events[0]) {
    this.chart.setLit(events);
    this.diff.setLit(events);
    this.status.textContent = event ? sentence(event, this.report) : HINT;
  }

  // The list at once, the others a frame later, if nothing else is looked for by then.
  filter(found) {
    this.found = found;
    this.diff.filter(found);
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (this.found !== found) return;
      this.storages.filter(found);
      this.modules.filter(found);
      if (!this.modules.chosen) this.chart.setMarked(found ? [...found] : [], "found");
    }));
  }

  mark(events, name) {
    this.chart.setMarked(events, name);
    this.diff.setMarked(events);
  }
}

// What the views want to know of events and storages; once for each plan.
function prepare(report) {
  if (report.series) return;
  seriesOf(report);
  for (const event of report.events) event.path = event.module || (event.phase === "optimizer" ? "(optimizer)" : "");
  for (const row of report.rows) row.fold?.forEach((event) => (event.inFold = row));
  report.bySize = [...report.storages].sort((a, b) => b.nbytes - a.nbytes);
  report.phases = phasesOf(report);
}

// The picture in words and numbers: the phases, and what is live at both peaks.
function showTable(report) {
  const { before, after } = report.series;
  const peaks = [report.before[before.peak], report.after[after.peak]];
  if (peaks.includes(undefined)) return;
  const kinds = report.kinds.filter((_, k) => peaks.some(({ parts }) => parts[k]));
  const rows = [["operator", ...peaks.map(({ name }) => name)]];
  rows.push(...kinds.map((kind) => [kind, ...peaks.map(({ texts }) => texts[kind])]));
  rows.push(["live", ...peaks.map(({ texts }) => texts.live)]);
  fillTable("at-peaks", rows);
  fillTable("phases", report.phases.map(([phase, first, last]) => phaseRow(report, phase, first, last)));
}

function phaseRow({ series: { after }, after: points, events }, phase, first, last) {
  const peak = after.live.slice(first, last).reduce((at, live, i, all) => (live > all[at] ? i : at), 0) + first;
  const count = (kind) => events.filter((event) => event.kind === kind && event.at > first - 1 && event.at < last).length;
  return [phase, last - first, count("drop"), count("recompute"), points[peak].texts.live, points[peak].name];
}

function fillTable(id, rows) {
  const body = document.getElementById(id).tBodies[0];
  body.replaceChildren();
  for (const [head, ...cells] of rows) {
    const row = body.insertRow();
    const first = row.appendChild(document.createElement("th"));
    Object.assign(first, { scope: "row", textContent: head });
    for (const text of cells) row.insertCell().textContent = text;
  }
}
