// The rows of the diff: phases by their titles, steps, folds of unchanged operators; or the steps that a search finds.

const MARKS = { drop: "−", recompute: "+" };

class Diff {
  // `light(events)` is told which events the pointer or the keyboard is at.
  constructor(light) {
    this.light = light;
    this.tree = new VirtualTree(document.getElementById("diff"), this);
    for (const id of ["search", "overview", "found", "unfold"]) this[id] = document.getElementById(id);
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
    this.report = report;
    this.folds = report.rows.filter((row) => row.fold);
    // Where an operator makes several things, drops name these.
    const made = (event) => event.storages.map((number) => report.storages[number].name);
    this.texts = report.events.map((event) =>
      [event.kind, event.name, event.origin, event.why, event.source, ...made(event)].join("\n").toLowerCase(),
    );
    this.search.value = "";
    this.tree.element.scrollTop = 0;
    this.update();
  }

  update() {
    const { events, rows } = this.report;
    const wanted = this.search.value.trim().toLowerCase();
    const visible = wanted
      ? events.filter((_, i) => this.texts[i].includes(wanted))
      : rows.flatMap((row) => (row.open ? [row, ...row.fold] : [row]));
    this.found.textContent = wanted ? `${visible.length} of ${formatCount(events.length, "step")}` : "";
    this.unfold.disabled = Boolean(wanted) || !this.folds.length;
    this.unfold.textContent = this.folds.every((fold) => fold.open) && this.folds.length ? "Fold all" : "Unfold all";
    this.tree.show(visible);
  }

  onActive(row) {
    if (row?.kind) this.light(together(row), row);
    else this.light([]);
  }

  // A fold opens or closes; from a change it goes to the change that belongs to it.
  onOpen(row, expanded) {
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
    this.tree.setLit(events);
    this.overview.replaceChildren(...Array.from(this.tree.lit, (event) => this.place(event)));
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
    element.className = row.fold ? "fold" : row.kind ?? "phase";
    if (row.fold) element.setAttribute("aria-expanded", row.open);
    for (const [key, text] of Object.entries(cellsOf(row))) {
      const cell = element.appendChild(document.createElement("span"));
      cell.className = key;
      cell.textContent = text;
      if (key === "source" || key === "name") cell.title = text;
    }
  }
}

function cellsOf(row) {
  const { kind, fold, origin: name, bytes, why, source, live } = row;
  if (fold) return { name: `${row.open ? "▾" : "…"} ${formatCount(fold.length, "operator")}`, live: `≤ ${live}` };
  if (!kind) return { name: row.title };
  return { mark: MARKS[kind] ?? "", verb: kind in MARKS ? kind : "", name, bytes, why, source, live };
}

// The change itself, and those that belong to it.
function together(event) {
  return [event, ...event.pairs];
}
