// The rows of the diff: phases by their titles, steps, folds of unchanged operators; or the steps that a search finds.

const MARKS = { drop: "−", recompute: "+", offload: "›", reload: "‹", wait: "=" };

class Diff {
  // `light(events)` is told which events the pointer or the keyboard is at, `see([from, to])` what is in view;
  // `unfind()` ends a search that hides where it is to go, and `go(event)` hears that it is there.
  constructor({ light, see, unfind, go }) {
    Object.assign(this, { light, see, unfind, go, found: null });
    this.tree = new VirtualTree(document.getElementById("diff"), this);
    for (const id of ["overview", "unfold"]) this[id] = document.getElementById(id);
    this.unfold.addEventListener("click", () => {
      const open = this.folds.some((fold) => !fold.open);
      for (const fold of this.folds) fold.open = open;
      this.update();
    });
  }

  show(report) {
    this.report = report;
    this.folds = report.rows.filter((row) => row.fold);
    this.found = null;
    this.tree.setClass("marked", []);
    this.tree.element.scrollTop = 0;
    this.update();
  }

  // Only the events that a search found, or all, folded.
  filter(found) {
    this.found = found;
    this.update();
  }

  update() {
    const { events, rows } = this.report;
    const { found } = this;
    const visible = found
      ? events.filter((event) => found.has(event))
      : rows.flatMap((row) => (row.open ? [row, ...row.fold] : [row]));
    this.unfold.disabled = Boolean(found) || !this.folds.length;
    this.unfold.textContent = this.folds.every((fold) => fold.open) && this.folds.length ? "Fold all" : "Unfold all";
    this.tree.show(visible);
  }

  // Marks events, and the folds that they are in, and shows the first of them.
  setMarked(events) {
    const rows = events.flatMap((event) => [event, event.inFold ?? event]);
    this.tree.setClass("marked", rows);
    const first = rows.find((row) => this.tree.at.has(row));
    if (first) this.tree.scrollTo(first);
  }

  // From the first operator in view to the last.
  onSeen(first, last) {
    const rows = this.tree.rows.slice(first, last).filter((row) => row.fold || row.kind);
    const events = rows.flatMap((row) => (row.fold ? [row.fold[0], row.fold.at(-1)] : [row]));
    this.see(events.length ? [events[0].at, events.at(-1).at] : null);
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
    if (this.found && !this.found.has(event)) this.unfind();
    const fold = event.inFold;
    if (fold) fold.open = true;
    this.update();
    this.tree.element.scrollIntoView({ block: "nearest" });
    this.tree.reveal(event);
    this.go(event);
  }

  setLit(events) {
    this.tree.setClass("lit", events);
    this.overview.replaceChildren(...events.slice(0, 200).map((event) => this.place(event)));
  }

  // Beside the list, where in it a lit event is.
  place(event) {
    const mark = document.createElement("i");
    const at = this.tree.at.get(event);
    mark.style.top = `${(100 * (at + 0.5)) / this.tree.rows.length}%`;
    mark.hidden = at === undefined;
    return mark;
  }

  fill(element, row) {
    element.className = row.fold ? "fold" : row.kind ?? "phase";
    if (row.fold) element.setAttribute("aria-expanded", row.open);
    for (const [key, text] of Object.entries(cellsOf(row))) {
      const cell = element.appendChild(document.createElement("span"));
      cell.className = key;
      cell.textContent = text;
      if (["source", "name", "why"].includes(key)) cell.title = text;
    }
  }
}

function cellsOf(row) {
  const { kind, fold, origin: name, bytes, why, live } = row;
  const source = row.source || row.path; // PyTorch's own modules have no line of the user's
  if (fold) return { name: `${row.open ? "▾" : "…"} ${formatCount(fold.length, "operator")}`, live: `≤ ${live}` };
  if (!kind) return { name: row.title };
  return { mark: MARKS[kind] ?? "", verb: kind in MARKS ? kind : "", name, bytes, why, source, live };
}

// The change itself, and those that belong to it.
function together(event) {
  return [event, ...event.pairs];
}
