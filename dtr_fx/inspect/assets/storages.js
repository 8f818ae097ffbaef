// The table of storages, sorted by the column whose head was pressed last.

const PAGE = 50;

class Storages {
  constructor(light) {
    this.light = light;
    this.body = document.querySelector("#storages tbody");
    this.more = document.getElementById("more");
    this.heads = [...document.querySelectorAll("#storages th")];
    this.more.addEventListener("click", () => {
      this.limit += PAGE;
      this.draw();
    });
    for (const head of this.heads) head.firstElementChild.addEventListener("click", () => this.sort(head));
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    for (const [kind, on] of [["pointerover", true], ["focusin", true], ["pointerleave", false], ["focusout", false]]) {
      this.body.addEventListener(kind, (event) => this.point(on ? event.target.closest("tr") : null));
    }
  }

  // Tab reaches the table once; from there on it is arrow keys.
  onKey(event) {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    if (next) {
      row.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      event.preventDefault();
    }
  }

  // What was dropped most often comes first, and of that the largest; in another plan the order stays that of the head.
  show(report) {
    this.report = report;
    this.all = [...report.bySize];
    this.found = null;
    this.limit = PAGE;
    const sorted = this.heads.find((head) => head.hasAttribute("aria-sort"));
    if (sorted) this.order(sorted, sorted.getAttribute("aria-sort") === "ascending");
    else this.order(this.heads.find((head) => head.dataset.key === "drops"), false);
  }

  // Only storages that events of a search make, drop or make again; or all.
  filter(found) {
    this.found = found && new Set([...found].flatMap(({ storages }) => storages).map((at) => this.report.storages[at]));
    this.draw();
  }

  // Numbers fall, names rise, and the same head again turns the order round.
  sort(head) {
    const was = head.getAttribute("aria-sort");
    this.order(head, was ? was === "descending" : this.isText(head));
  }

  isText(head) {
    return ["name", "kind"].includes(head.dataset.key);
  }

  order(head, rises) {
    const { key } = head.dataset;
    for (const other of this.heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rises ? "ascending" : "descending");
    const byText = (a, b) => a[key].localeCompare(b[key], "en", { numeric: true });
    const compare = this.isText(head) ? byText : (a, b) => a[key] - b[key];
    this.all.sort(rises ? compare : (a, b) => compare(b, a));
    this.draw();
  }

  draw() {
    this.storages = this.found ? this.all.filter((storage) => this.found.has(storage)) : this.all;
    const left = Math.max(0, this.storages.length - this.limit);
    this.body.replaceChildren(...this.storages.slice(0, this.limit).map((storage, i) => this.row(storage, i)));
    this.more.hidden = !left;
    this.more.textContent = `Show ${Math.min(PAGE, left)} more of ${left}`;
  }

  row(storage, i) {
    const row = document.createElement("tr");
    row.tabIndex = i ? -1 : 0;
    row.dataset.storage = i;
    for (const { dataset: { key }, textContent } of this.heads) {
      const cell = row.insertCell();
      cell.textContent = storage.texts[key] ?? storage[key];
      cell.dataset.head = textContent;
      if (key === "name") cell.title = cell.textContent;
      if (key === "kind") cell.prepend(swatch(storage.kind));
    }
    return row;
  }

  point(row) {
    const events = row ? this.storages[row.dataset.storage].events : [];
    this.light(events, events.find((event) => event.kind === "drop"));
  }
}

// The colour that a kind has in the chart; a saved state and a kept copy count as activations there.
function swatch(kind) {
  const element = document.createElement("i");
  element.className = kind.includes(" ") ? "activation" : kind;
  return element;
}
