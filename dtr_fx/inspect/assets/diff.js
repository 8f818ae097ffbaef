// The rows of the diff: phases by their titles, steps, folds of unchanged operators; or the steps that a search finds.

const MARKS = { drop: "−", recompute: "+" };

class Diff {
  // `light(events)` is told which events the pointer or the keyboard is at.
  constructor(root, { light }) {
    this.light = light;
    this.lit = new Set();
    this.tree = new VirtualTree(root.querySelector("#diff"), {
      fill: (element, row) => this.fill(element, row),
      onActive: (row) => (row?.kind ? this.light(together(row), row) : this.light([])),
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
    this.rows = report.rows;
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
    const visible = wanted
      ? this.events.filter((_, i) => this.texts[i].includes(wanted))
      : this.rows.flatMap((row) => (row.open ? [row, ...row.fold] : [row]));
    this.found.textContent = wanted ? `${visible.length} of ${formatCount(this.events.length, "step")}` : "";
    this.unfold.disabled = Boolean(wanted) || !this.folds.length;
    this.unfold.textContent = this.folds.every((fold) => fold.open) && this.folds.length ? "Fold all" : "Unfold all";
    this.tree.show(visible);
  }

  // A fold opens or closes; from a change it goes to the change that belongs to it.
  open(row, expanded) {
    if (row.fold) {
      row.open = expanded ?? !row.open;
      this.update();
    } else if (row.pairs?.length && expanded === undefined) {
      this.goTo(row.pairs[0]);
    }
  }

  goTo(event) {
    if (this.search.value && !this.tree.rows.includes(event)) this.search.value = "";
    const fold = this.folds.find((candidate) => candidate.fold.includes(event));
    if (fold) fold.open = true;
    this.update();
    this.tree.reveal(event);
  }

  setLit(events) {
    this.lit = new Set(events);
    this.tree.refill();
    this.overview.replaceChildren(...[...this.lit].map((event) => this.place(event)));
  }

  // Beside the list, where in it a lit event is.
  place(event) {
    const mark = document.createElement("i");
    const at = this.tree.rows.indexOf(event);
    mark.style.top = `${(100 * (at + 0.5)) / this.tree.rows.length}%`;
    mark.hidden = at < 0;
    return mark;
  }

  fill(element, row) {
    if (row.fold) {
      element.className = "fold";
      element.setAttribute("aria-expanded", row.open);
      const count = formatCount(row.fold.length, "operator");
      setCells(element, { name: `${row.open ? "▾" : "…"} ${count}`, live: `≤ ${row.live}` });
    } else if (row.kind) {
      element.className = `step ${row.kind}${this.lit.has(row) ? " lit" : ""}`;
      setCells(element, {
        mark: MARKS[row.kind] ?? "", verb: row.kind in MARKS ? row.kind : "", name: row.origin,
        bytes: row.bytes, why: row.why, source: row.source, live: row.live,
      });
    } else {
      element.className = "phase";
      setCells(element, { name: row.title });
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
