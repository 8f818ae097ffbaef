// A tree of rows of one height, of which only those in view are in the document; moved through by keyboard.

const PRINTED = 150; // rows on paper
const PAPER = matchMedia("print");

class VirtualTree {
  // The view's `fill(element, row)` writes a row; its `onActive(row)` and `onOpen(row, expanded, event)` hear of
  // pointer and keyboard, and `onSeen(first, last)` which rows are in view.
  constructor(element, view) {
    const classes = { lit: new Set(), marked: new Set() };
    Object.assign(this, { element, view, rows: [], at: new Map(), shown: new Map(), active: null, classes });
    this.spacer = element.appendChild(document.createElement("div"));
    this.spacer.className = "spacer";
    this.spacer.setAttribute("role", "presentation");
    element.addEventListener("scroll", () => this.draw());
    element.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("pointermove", (event) => {
      // Rows that scroll past a pointer at rest are not pointed at.
      const place = `${event.clientX},${event.clientY}`;
      if (place !== this.place) this.onPointer(event, (row) => this.pointAt(row));
      this.place = place;
    });
    element.addEventListener("pointerleave", () => {
      this.place = null;
      this.pointAt(this.active);
    });
    element.addEventListener("click", (event) => this.onPointer(event, (row) => {
      this.activate(row);
      this.view.onOpen(row, undefined, event);
    }));
    new ResizeObserver(() => this.layout()).observe(element);
    PAPER.addEventListener("change", () => this.layout());
  }

  show(rows) {
    this.rows = rows;
    this.at = new Map(rows.map((row, i) => [row, i]));
    if (!this.at.has(this.active)) this.active = null;
    this.layout();
  }

  // Draws all rows anew: their height or content has changed.
  layout() {
    this.height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 26;
    this.spacer.style.height = `${this.rows.length * this.height}px`;
    this.spacer.replaceChildren();
    this.shown.clear();
    this.draw();
  }

  draw() {
    const left = this.rows.length - PRINTED;
    const [first, last] = PAPER.matches ? [0, PRINTED + Math.min(0, left)] : this.range(8);
    if (left > 0) this.spacer.dataset.more = `… ${left} more rows`;
    else delete this.spacer.dataset.more;
    for (const [i, row] of this.shown) {
      if (i < first || i >= last) {
        row.remove();
        this.shown.delete(i);
      }
    }
    for (let i = first; i < last; i++) {
      if (!this.shown.has(i)) this.shown.set(i, this.spacer.appendChild(this.make(i)));
    }
    this.markActive();
    this.view.onSeen?.(...this.range(0));
  }

  // The rows in view, and some around them.
  range(margin) {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - margin);
    const inView = Math.ceil(this.element.clientHeight / this.height) + 2 * margin;
    return [first, Math.min(this.rows.length, first + inView)];
  }

  make(i) {
    const row = document.createElement("div");
    row.id = `${this.element.id}-${i}`;
    row.dataset.row = i;
    row.style.transform = `translateY(${i * this.height}px)`;
    const attributes = { role: "treeitem", "aria-setsize": this.rows.length, "aria-posinset": i + 1 };
    for (const [key, value] of Object.entries(attributes)) row.setAttribute(key, value);
    this.view.fill(row, this.rows[i]);
    for (const [name, rows] of Object.entries(this.classes)) row.classList.toggle(name, rows.has(this.rows[i]));
    return row;
  }

  setClass(name, rows) {
    this.classes[name] = new Set(rows);
    for (const [i, row] of this.shown) row.classList.toggle(name, this.classes[name].has(this.rows[i]));
  }

  activate(row) {
    this.active = row;
    this.markActive();
    this.pointAt(row);
  }

  pointAt(row) {
    if (row !== this.pointed) this.view.onActive(row);
    this.pointed = row;
  }

  markActive() {
    const at = this.at.get(this.active);
    for (const [i, row] of this.shown) row.setAttribute("aria-selected", i === at);
    if (this.shown.has(at)) this.element.setAttribute("aria-activedescendant", this.shown.get(at).id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  reveal(row) {
    this.scrollTo(row);
    this.activate(row);
  }

  scrollTo(row) {
    const top = this.at.get(row) * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top + this.height > scrollTop + clientHeight) {
      this.element.scrollTop = top - clientHeight / 3;
    }
    this.draw();
  }

  onPointer(event, then) {
    const row = event.target.closest("[data-row]");
    if (row) then(this.rows[row.dataset.row]);
  }

  onKey(event) {
    const page = Math.floor(this.element.clientHeight / this.height) - 1;
    const at = this.at.get(this.active) ?? -1;
    const last = this.rows.length - 1;
    const moves = {
      ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last,
    };
    if (event.key in moves && last >= 0) {
      this.reveal(this.rows[Math.min(Math.max(moves[event.key], 0), last)]);
    } else if (this.active && ["Enter", " ", "ArrowLeft", "ArrowRight"].includes(event.key)) {
      this.view.onOpen(this.active, { ArrowLeft: false, ArrowRight: true }[event.key]);
    } else {
      return;
    }
    event.preventDefault();
  }
}
