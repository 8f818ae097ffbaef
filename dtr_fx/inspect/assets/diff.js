// The operators in execution order, unchanged runs folded, or those that a search finds.

const CONTEXT = 1; // unchanged operators shown on either side of a change, as in the terminal
const MARKS = { drop: "−", recompute: "+" };

class Diff {
  // `light(events)` is told which events the pointer or the keyboard is at.
  constructor(root, { light }) {
    this.light = light;
    this.lit = new Set();
    this.tree = new VirtualTree(root.querySelector("#diff"), {
      fill: (element, row) => this.fill(element, row),
      onActive: (row) => this.light(row?.event ? together(row.event) : [], row?.event),
      onOpen: (row, expanded) => this.open(row, expanded),
    });
    this.search = root.querySelector("#search");
    this.overview = root.querySelector("#overview");
    this.found = root.querySelector("#found");
    this.unfold = root.querySelector("#unfold");
    this.search.addEventListener("input", () => this.update());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") this.tree.element.focus();
    });
    this.unfold.addEventListener("click", () => {
      const open = this.folds.some((fold) => !fold.open);
      for (const fold of this.folds) fold.open = open;
      this.update();
    });
  }

  show(report) {
    this.events = report.events;
    this.rows = foldedRows(report.events);
    this.folds = this.rows.filter((row) => row.fold);
    this.texts = report.events.map((event) =>
      [event.kind, event.name, event.origin, event.why, event.source, ...made(event, report)].join("\n").toLowerCase(),
    );
    this.search.value = "";
    this.tree.element.scrollTop = 0;
    this.update();
  }

  update() {
    const wanted = this.search.value.trim().toLowerCase();
    const visible = wanted ? this.matching(wanted) : this.rows.flatMap(withInside);
    this.found.textContent = wanted ? `${visible.length} of ${formatCount(this.events.length, "step")}` : "";
    this.unfold.disabled = Boolean(wanted) || !this.folds.length;
    this.unfold.textContent = this.folds.every((fold) => fold.open) && this.folds.length ? "Fold all" : "Unfold all";
    this.tree.show(visible);
  }

  matching(wanted) {
    const texts = this.texts;
    return this.events.filter((_, i) => texts[i].includes(wanted)).map(rowOf);
  }

  // A fold opens or closes; from a change it goes to the change that belongs to it.
  open(row, expanded) {
    if (row.fold) {
      row.open = expanded ?? !row.open;
      this.update();
    } else if (row.event?.pairs.length && expanded === undefined) {
      this.goTo(row.event.pairs[0]);
    }
  }

  goTo(event) {
    if (this.search.value && !this.tree.rows.includes(rowOf(event))) this.search.value = "";
    const fold = this.folds.find((candidate) => candidate.fold.includes(event));
    if (fold) fold.open = true;
    this.update();
    this.tree.reveal(rowOf(event));
  }

  setLit(events) {
    this.lit = new Set(events);
    this.tree.refill();
    this.overview.replaceChildren(...[...this.lit].map((event) => this.place(event)));
  }

  // Beside the list, where in it a lit event is.
  place(event) {
    const mark = document.createElement("i");
    const at = this.tree.rows.indexOf(rowOf(event));
    mark.style.top = `${(100 * (at + 0.5)) / this.tree.rows.length}%`;
    mark.hidden = at < 0;
    return mark;
  }

  fill(element, row) {
    if (row.fold) {
      element.className = "fold";
      element.setAttribute("aria-expanded", row.open);
      const count = formatCount(row.fold.length, "operator");
      setCells(element, { name: `${row.open ? "▾" : "…"} ${count}`, live: `≤ ${formatBytes(row.live)}` });
    } else if (row.event) {
      const { event } = row;
      const changed = event.kind in MARKS;
      element.className = `step ${event.kind}${this.lit.has(event) ? " lit" : ""}`;
      setCells(element, {
        mark: MARKS[event.kind] ?? "", verb: changed ? event.kind : "", name: event.origin,
        bytes: formatBytes(event.nbytes), why: event.why, source: event.source, live: formatBytes(event.live),
      });
    } else {
      element.className = "phase";
      setCells(element, { name: row.phase });
    }
  }
}

function setCells(element, texts) {
  if (!element.childElementCount) {
    for (const key of Object.keys(texts)) {
      const cell = element.appendChild(document.createElement("span"));
      cell.className = key;
      cell.textContent = texts[key];
      if (key === "source" || key === "name") cell.title = texts[key];
    }
  }
}

// The names of what an operator makes: where it makes several things, drops name these.
function made(event, report) {
  return event.storages.map((number) => report.storages[number].name);
}

// The change itself, and those that belong to it.
function together(event) {
  return [event, ...event.pairs];
}

const rows = new WeakMap();

function rowOf(event) {
  if (!rows.has(event)) rows.set(event, { event });
  return rows.get(event);
}

function withInside(row) {
  return row.fold && row.open ? [row, ...row.fold.map(rowOf)] : [row];
}

function foldedRows(events) {
  const found = [];
  for (const phase of groups(events, (event) => event.phase)) {
    if (phase[0].phase) found.push({ phase: title(phase) });
    const isNear = new Array(phase.length).fill(false);
    phase.forEach((event, i) => {
      if (event.kind in MARKS) isNear.fill(true, Math.max(0, i - CONTEXT), i + CONTEXT + 1);
    });
    const near = new Map(phase.map((event, i) => [event, isNear[i]]));
    for (const run of groups(phase, (event) => near.get(event))) {
      if (near.get(run[0]) || run.length === 1) found.push(...run.map(rowOf));
      else found.push({ fold: run, open: false, live: run.reduce((most, { live }) => Math.max(most, live), 0) });
    }
  }
  return found;
}

function groups(items, key) {
  const found = [];
  let last;
  for (const item of items) {
    if (found.length && key(item) === last) found.at(-1).push(item);
    else found.push([item]);
    last = key(item);
  }
  return found;
}

function title(events) {
  const count = (kind) => events.filter((event) => event.kind === kind).length;
  return (
    `${events[0].phase}: ${formatCount(count("compute"), "operator")}, ` +
    `${formatCount(count("drop"), "drop")}, ${formatCount(count("recompute"), "recompute")}`
  );
}
